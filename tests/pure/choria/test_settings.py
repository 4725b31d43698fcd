"""choria.cfg: syntax, load order, typed keys, and every fault named with its file."""

from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.choria import settings
from provisioner.choria.settings import ChoriaSettings, load_order, read_settings
from provisioner.errors import ConfigError, Fault
from provisioner.printable import escaped
from provisioner.secret import Secret

MAIN = PurePath("/etc/choria-provisioner/choria.cfg")


def _read(text: str, **environ: str) -> ChoriaSettings:
    return read_settings([(MAIN, text)], environ=environ, default_identity="host.example.net")


def _faults(text: str, **environ: str) -> tuple[Fault, ...]:
    with pytest.raises(ConfigError) as caught:
        _read(text, **environ)
    return caught.value.faults


def test_syntax() -> None:
    text = "\n  # comment\n a = b \r\nempty=\n=novalue\nnonsense\nc=d=e\nf = g # not a comment\n  h   =   i j\n#x=y"
    assert list(settings.parse(text)) == [("a", "b"), ("c", "d=e"), ("f", "g # not a comment"), ("h", "i j")]


def test_nothing_is_read_after_a_huge_line() -> None:
    longest = "b=" + "x" * (settings.MAX_LINE - 2)
    assert list(settings.parse(f"a=1\n{longest}x\nc=2")) == [("a", "1")]
    assert [key for key, _ in settings.parse(f"a=1\n{longest}\nc=2")] == ["a", "b", "c"]


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    list(settings.parse(text))
    try:
        _read(f"identity = {text}\nttl = {text}\nplugin.choria.middleware_hosts = {text}")
    except ConfigError as error:
        assert error.faults  # noqa: PT017 - either outcome is right


def test_defaults() -> None:
    read = _read("")
    assert read == ChoriaSettings(identity="host.example.net")
    assert (read.ttl, read.discovery_timeout, read.connect_timeout) == (60, 2, 2.0)
    assert (read.security_provider, read.version, read.use_srv) == ("puppet", 1, True)
    assert (read.hosts, read.federated) == ((), False)


def test_every_key() -> None:
    read = _read(
        """
        identity = prov.example.net
        ttl = 90
        discovery_timeout = 3
        plugin.choria.middleware_hosts = b1.example.net:4222, nats://b2.example.net:4223 ,
        plugin.choria.use_srv = no
        plugin.choria.srv_domain = example.net
        plugin.choria.federation.collectives = one, two
        plugin.choria.federation_middleware_hosts = f1:4222
        plugin.choria.network.connect_timeout = 1m
        plugin.choria.require_client_filter = Y
        plugin.nats.user = u
        plugin.nats.pass = s3cret
        plugin.nats.credentials = ~/nats.creds
        plugin.security.provider = choria
        plugin.security.file.certificate = /c.pem
        plugin.security.file.key = /k.pem
        plugin.security.file.ca = /ca.pem
        plugin.choria.ssldir = ~/ssl
        plugin.security.support_legacy_certificates = 1
        plugin.security.choria.token_file = ~/t.jwt
        plugin.security.choria.seed_file = /t.seed
        plugin.security.choria.certificate = /cc.pem
        plugin.security.choria.key = /ck.pem
        plugin.security.choria.ca = /cca.pem
        plugin.security.cipher_suites = A,B
        plugin.security.ecc_curves = X25519
        """,
        HOME="/home/rip",
    )
    assert read == ChoriaSettings(
        identity="prov.example.net",
        ttl=90,
        discovery_timeout=3,
        middleware_hosts=("nats://b1.example.net:4222", "nats://b2.example.net:4223"),
        use_srv=False,
        srv_domain="example.net",
        federation_collectives=("one", "two"),
        federation_middleware_hosts=("nats://f1:4222",),
        connect_timeout=60.0,
        require_client_filter=True,
        nats_user="u",
        nats_pass=Secret("s3cret"),
        nats_credentials="/home/rip/nats.creds",
        security_provider="choria",
        file_certificate="/c.pem",
        file_key="/k.pem",
        file_ca="/ca.pem",
        ssldir="/home/rip/ssl",
        support_legacy_certificates=True,
        choria_token_file="/home/rip/t.jwt",
        choria_seed_file="/t.seed",
        choria_certificate="/cc.pem",
        choria_key="/ck.pem",
        choria_ca="/cca.pem",
        cipher_suites=("A", "B"),
        ecc_curves=("X25519",),
    )
    assert len(settings.known_keys()) == 26
    assert settings.known_keys()["plugin.nats.pass"] == "nats_pass"
    assert (read.version, read.federated, read.hosts) == (2, True, ("nats://f1:4222",))
    assert "s3cret" not in repr(read)


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("YES", True), ("true", True), ("t", True), ("on", False), ("0", False)]
)
def test_booleans(text: str, value: bool) -> None:
    assert _read(f"plugin.choria.use_srv = {text}").use_srv is value


@pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("120", 120.0), ("500ms", 0.5), ("2m", 120.0)])
def test_connect_timeout(text: str, seconds: float) -> None:
    assert _read(f"plugin.choria.network.connect_timeout = {text}").connect_timeout == seconds


def test_faults_name_file_key_and_value() -> None:
    assert _faults(
        "ttl = soon\ndiscovery_timeout = 0\nplugin.choria.network.connect_timeout = 3m\n"
        "plugin.security.provider = pkcs11\n"
        "plugin.choria.middleware_hosts = a:1, nats://u:s3cret@b\n"
    ) == (
        Fault(str(MAIN), "ttl", "a whole number of at most nine digits is wanted", "soon"),
        Fault(str(MAIN), "discovery_timeout", "more than 0 and at most 31536000 seconds are wanted", "0"),
        Fault(
            str(MAIN), "plugin.choria.middleware_hosts", "a host and a port are wanted, such as broker.example.net:4222"
        ),
        Fault(str(MAIN), "plugin.choria.network.connect_timeout", "more than 0s and at most 120s are wanted", "3m"),
        Fault(str(MAIN), "plugin.security.provider", "one of puppet, file, choria is wanted", "pkcs11"),
    )


@pytest.mark.parametrize("text", ["-1", "1.5", "\u0661", "0x10", "10 # ten", "1" * 10, "1" * 5000, "31536001", "29"])
def test_bad_numbers(text: str) -> None:
    (fault,) = _faults(f"ttl = {text}")
    assert (fault.key, fault.found) == ("ttl", escaped(text, 100))


def test_bytes_that_are_no_text_stand_in_paths_only() -> None:
    odd = b"/k\xff".decode(errors="surrogateescape")
    assert _read(f"plugin.security.file.key = {odd}").file_key == odd
    faults = _faults(f"identity = n{odd}\nplugin.nats.user = {odd}\nplugin.nats.pass = {odd}")
    assert [(fault.key, fault.problem) for fault in faults] == [
        ("identity", "it can't be a name: it has a character outside ASCII"),
        ("plugin.nats.user", "text in UTF-8 is wanted"),
        ("plugin.nats.pass", "text in UTF-8 is wanted"),
    ]
    assert faults[2].found is None
    assert "\udcff" not in str(faults[1])


def test_ttl_at_its_edges() -> None:
    assert _read("ttl = 30").ttl == 30
    assert _read("ttl = 31536000").ttl == 31_536_000
    assert _read("ttl = 1\nplugin.security.provider = choria").ttl == 1
    (fault,) = _faults("ttl = 29")
    assert fault.problem == "servers of protocol version 1 drop requests of less than 30 seconds"


@pytest.mark.parametrize("text", ["0", "121", "120.1s", "-1s"])
def test_connect_timeouts_out_of_range(text: str) -> None:
    (fault,) = _faults(f"plugin.choria.network.connect_timeout = {text}")
    assert fault.problem == "more than 0s and at most 120s are wanted"


def test_a_found_value_is_shown_short() -> None:
    (fault,) = _faults("ttl = " + "x" * 101)
    assert fault.found == "x" * 100 + "…"


def test_a_bad_duration() -> None:
    (fault,) = _faults("plugin.choria.network.connect_timeout = 1x")
    assert str(fault) == (
        "/etc/choria-provisioner/choria.cfg: plugin.choria.network.connect_timeout: "
        "invalid time unit 'x' in '1x' (found 1x)"
    )


def test_what_must_not_stand_beside_provider_choria() -> None:
    text = "plugin.security.client_anon_tls = 1\nplugin.choria.security.request_signer.token_file = /x\n"
    assert _read(text).security_provider == "puppet"
    faults = _faults(text + "plugin.security.provider = choria")
    assert [fault.key for fault in faults] == [
        "plugin.security.client_anon_tls",
        "plugin.choria.security.request_signer.token_file",
    ]
    assert {fault.problem for fault in faults} == {"must not be set beside plugin.security.provider = choria"}


# --- several files ---------------------------------------------------------------------------------------------------


def test_load_order() -> None:
    order = load_order(MAIN, home="/root", working_directory=PurePath("/srv/project"))
    assert list(map(str, order)) == [
        "/etc/choria-provisioner/choria.cfg",
        "/etc/choria-provisioner/plugin.d/choria.cfg",
        "/choria.conf",
        "/srv/choria.conf",
        "/srv/project/choria.conf",
    ]


def test_no_plugin_d_beside_a_file_at_home() -> None:
    order = load_order(PurePath("/home/op/.choriarc"), home="/home/op", working_directory=PurePath("/"))
    assert list(map(str, order)) == ["/home/op/.choriarc", "/choria.conf"]
    assert len(load_order(MAIN, home="", working_directory=PurePath("/"))) == 3


def test_default_locations() -> None:
    system = ["/etc/choria/client.conf", "/usr/local/etc/choria/client.conf", "/etc/puppetlabs/mcollective/client.cfg"]
    assert list(map(str, settings.default_locations(""))) == system
    assert list(map(str, settings.default_locations("/home/op"))) == [
        "/home/op/.choriarc",
        "/home/op/.mcollective",
        *system,
    ]


def test_later_files_override_and_plugin_d_has_a_prefix() -> None:
    read = read_settings(
        [
            (MAIN, "identity = first\nttl = 50\nplugin.choria.use_srv = 1\nplugin.choria.srv_domain = first"),
            (MAIN.parent / "plugin.d" / "choria.cfg", "use_srv = 0\nttl = 70\nsrv_domain = second"),
            (PurePath("/srv/choria.conf"), "identity = third\nplugin.choria.srv_domain = third"),
        ],
        environ={},
        default_identity="host",
    )
    assert (read.identity, read.ttl, read.use_srv, read.srv_domain) == ("third", 50, False, "third")


def test_a_fault_names_the_file_that_wins() -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings([(MAIN, "ttl = 60"), (PurePath("/choria.conf"), "ttl = x")], environ={}, default_identity="h")
    assert caught.value.faults == (
        Fault("/choria.conf", "ttl", "a whole number of at most nine digits is wanted", "x"),
    )


def test_environment() -> None:
    environ = {
        "CHORIA_SRV_DOMAIN": "srv.example.net",
        "CHORIA_FED_COLLECTIVE": "a,b",
        "MCOLLECTIVE_NATS_USERNAME": "user",
        "MCOLLECTIVE_NATS_PASSWORD": "pass",
        "MCOLLECTIVE_NATS_CREDENTIALS": "/creds",
    }
    without = _read("", **environ)
    assert (without.srv_domain, without.federation_collectives) == ("srv.example.net", ("a", "b"))
    assert (without.nats_user, without.nats_pass, without.nats_credentials) == ("", Secret(""), "")
    beside = _read("plugin.nats.user = x\nplugin.nats.pass = y\nplugin.nats.credentials = z\n", **environ)
    assert (beside.nats_user, beside.nats_pass, beside.nats_credentials) == ("user", Secret("pass"), "/creds")


# --- the files of our credential -------------------------------------------------------------------------------------


def test_key_files() -> None:
    file = _read("plugin.security.provider = file\nplugin.security.file.key = /k\nplugin.security.file.ca = /ca")
    assert file.key_files("x") == (
        ("plugin.security.file.certificate", ""),
        ("plugin.security.file.key", "/k"),
        ("plugin.security.file.ca", "/ca"),
    )
    puppet = _read("plugin.choria.ssldir = /ssl")
    assert puppet.key_files("rip.mcollective") == (
        ("plugin.choria.ssldir", "/ssl/certs/rip.mcollective.pem"),
        ("plugin.choria.ssldir", "/ssl/private_keys/rip.mcollective.pem"),
        ("plugin.choria.ssldir", "/ssl/certs/ca.pem"),
    )
    assert _read("").key_files("x") == (("plugin.choria.ssldir", ""),) * 3
    choria = "plugin.security.provider = choria\n"
    token, seed = "plugin.security.choria.token_file", "plugin.security.choria.seed_file"
    assert _read(choria).key_files("x") == ((token, ""), (seed, ""))
    assert _read(f"{choria}{token} = /etc/p.jwt").key_files("x") == ((token, "/etc/p.jwt"), (seed, "/etc/p.key"))
    assert _read(f"{choria}{token} = /p.jwt\n{seed} = /s").key_files("x") == ((token, "/p.jwt"), (seed, "/s"))
