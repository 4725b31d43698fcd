"""Provisions Choria Servers, PostgreSQL logins and a mesh registry: three Trio services in one house."""
