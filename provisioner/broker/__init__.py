"""From the operator's files to a connection with a Choria broker: which servers, which login, what a refusal means."""
