"""The configuration: defaults, every key, the rules between keys, warnings; the text only, no files."""

from contextlib import suppress
from pathlib import Path

import pytest
from attrs import fields
from hypothesis import given
from hypothesis import strategies as st

from provisioner.config import Config, Features, parse_config
from provisioner.config_keys import DEAD, DENY_LIST, KEYS
from provisioner.errors import ConfigError, Fault
from provisioner.secret import Secret
from provisioner.strictyaml import NotYAML, Scalar, load

FILE = Path("/etc/choria-provisioner/choria-provisioner.yaml")
LEAST = "helper: /opt/prov/helper\ntoken: toktoktok\n"
HEX_KEY = "ed4928c628d1c2c6eae90338905995612959273a5c63f93636c14614ac8737d1"


def parse(more: str = "", **options: object) -> Config:
    return parse_config(LEAST + more, FILE, **options)  # type: ignore[arg-type]


def faults(content: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(content, FILE)
    assert all(fault.file == str(FILE) for fault in caught.value.faults)
    return [f"{fault.key}: {fault.problem}" for fault in caught.value.faults]


def test_the_defaults_are_those_of_the_specification() -> None:
    assert parse(cpus=6) == Config(
        path=FILE,
        workers=6,
        interval=60.0,
        interval_text="1m",
        helper=("/opt/prov/helper",),
        token=Secret("toktoktok"),
        site="",
        lifecycle_component="provision_mode_server",
        logfile="",
        loglevel="info",
        choria_insecure=False,
        monitor_port=0,
        broker_provisioning_password=Secret(""),
        cert_deny_list=(r"\.privileged.mcollective$", r"\.privileged.choria$", r"\.mcollective$", r"\.choria$"),
        jwt_verify_cert="",
        jwt_signing_key=None,
        jwt_signing_token=None,
        server_jwt_validity=365 * 86400.0,
        leader_election=False,
        upgrades_repository="",
        upgrades_optional=False,
        features=Features(),
    )


def test_an_embedder_who_names_the_least_gets_the_same_defaults() -> None:
    least = {"path": FILE, "workers": 1, "interval": 60.0, "interval_text": "1m", "helper": ("/opt/prov/helper",)}
    assert Config(**least, token=Secret("toktoktok")) == parse()  # type: ignore[arg-type]


def test_every_key_is_read() -> None:
    config = parse(f"""
workers: 4
interval: 1h30m
site: London
lifecycle_component: prov
logfile: /var/log/p.log
loglevel: DEBUG
choria_insecure: yes
monitor_port: 8080
status_listen: all
broker_provisioning_password: s3cret
cert_deny_list: ["/evil.*/", "x$"]
cert_allow_extensions: ["1.3.6.1.4.1.34380.1.1.1"]
jwt_verify_cert: {HEX_KEY}
jwt_signing_key: /etc/k
jwt_signing_token: /etc/t
server_jwt_validity: 2w
leader_election: true
create_bucket: true
upgrades_repository: https://repo
upgrades_optional: true
helper_mode: stream
helper_processes: 3
helper_input_extra: true
record_inputs: /var/tmp
audit_log: /var/log/audit
features: {{jwt: true, ed25519: true, upgrades: true}}
""")
    assert config == Config(
        path=FILE,
        workers=4,
        interval=5400.0,
        interval_text="1h30m",
        helper=("/opt/prov/helper",),
        token=Secret("toktoktok"),
        site="London",
        lifecycle_component="prov",
        logfile="/var/log/p.log",
        loglevel="debug",
        choria_insecure=True,
        monitor_port=8080,
        status_listen="all",
        broker_provisioning_password=Secret("s3cret"),
        cert_deny_list=("evil.*", "x$"),
        cert_allow_extensions=("1.3.6.1.4.1.34380.1.1.1",),
        jwt_verify_cert=HEX_KEY,
        jwt_signing_key=Path("/etc/k"),
        jwt_signing_token=Path("/etc/t"),
        server_jwt_validity=14 * 86400.0,
        leader_election=True,
        create_bucket=True,
        upgrades_repository="https://repo",
        upgrades_optional=True,
        helper_mode="stream",
        helper_processes=3,
        helper_input_extra=True,
        record_inputs=Path("/var/tmp"),
        audit_log=Path("/var/log/audit"),
        features=Features(jwt=True, ed25519=True, upgrades=True),
    )
    assert parse("sharing: true").sharing is True
    assert parse(f"features: {{jwt: on, pki: on}}\njwt_verify_cert: {HEX_KEY}").features == Features(jwt=True, pki=True)


def test_table_and_config_agree() -> None:
    ours = {"path", "interval_text", "warnings", "features"}
    named = {key.name for key in KEYS}
    assert {f"features.{f.name}" for f in fields(Features)} | {f.name for f in fields(Config)} - ours == named
    assert len(named) == len(KEYS)
    assert named.isdisjoint(DEAD)
    assert {key.name for key in KEYS if key.secret} == {"token", "broker_provisioning_password"}


def test_what_needs_a_restart() -> None:
    words = (
        "audit_log broker_provisioning_password choria_insecure create_bucket helper_mode helper_processes"
        " leader_election lifecycle_component logfile monitor_port sharing site status_listen workers"
    )
    assert sorted(key.name for key in KEYS if not key.reload) == words.split()


def test_a_wrong_value_is_shown_within_bounds() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"loglevel: {'x' * 500}")
    assert [fault.found for fault in caught.value.faults] == ["x" * 100 + "…"]


def test_empty_values_are_the_default() -> None:
    assert parse("".join(f"{key.name}:\n" for key in KEYS if "." not in key.name and not key.required)) == parse()
    assert parse("features:\nsite: ''\ninterval: ''\n") == parse()


def test_the_words_of_the_helper_are_split() -> None:
    assert parse_config("helper: /h 'a b' $X;\ntoken: t\n", FILE).helper == ("/h", "a b", "$X;")


def test_quoted_values_are_text() -> None:
    config = parse_config("helper: h\ntoken: '0123'\nsite: 'no'\n", FILE)
    assert (config.token.reveal(), config.site) == ("0123", "no")
    assert parse("site: !!str 5").site == "5"


def test_an_empty_deny_list_is_one() -> None:
    assert parse("cert_deny_list: []").cert_deny_list == ()
    assert parse().cert_deny_list == DENY_LIST


def test_no_workers_is_one_for_each_cpu() -> None:
    assert parse("workers: 0", cpus=3).workers == 3
    assert parse("workers: 1", cpus=3).workers == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            f"features: {{pki: true, ed25519: true}}\njwt_verify_cert: {HEX_KEY}\njwt_signing_key: /k",
            ["features.ed25519: must not be on beside features.pki: a server is enrolled the one way or the other"],
        ),
        (
            "features: {ed25519: true}",
            [
                "jwt_verify_cert: is missing: needed by features.ed25519, which turns on features.jwt",
                "jwt_signing_key: is missing: needed by features.ed25519",
            ],
        ),
        ("features: {jwt: true}", ["jwt_verify_cert: is missing: needed by features.jwt"]),
        (
            "features: {upgrades: true}",
            ["upgrades_repository: is missing: needed by features.upgrades, unless upgrades_optional is true"],
        ),
        (
            "sharing: true\nleader_election: true",
            ["sharing: must not be on beside leader_election: either one instance works or all do"],
        ),
    ],
)
def test_rules_between_keys(more: str, said: list[str]) -> None:
    assert faults(LEAST + more) == said


def test_rules_between_keys_that_are_kept() -> None:
    assert parse("features: {upgrades: true}\nupgrades_optional: true").features.upgrades
    assert parse("features: {upgrades: true}\nupgrades_repository: https://x").features.upgrades
    assert parse(f"features: {{ed25519: true}}\njwt_verify_cert: {HEX_KEY}\njwt_signing_key: /k").features.jwt


def test_a_key_with_a_fault_of_its_own_is_not_called_missing_too() -> None:
    (said,) = faults(LEAST + "features: {jwt: true}\njwt_verify_cert: 12")
    assert "YAML reads this as a number" in said


def test_all_faults_are_told_at_once_in_the_order_of_the_documentation() -> None:
    said = faults("workers: x\nsite: 5\nfeatures: {jwt: 3}\n")
    assert [line.split(":")[0] for line in said] == ["workers", "helper", "token", "site", "features.jwt"]


def test_faults_in_files_are_told_beside_the_others() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(
            LEAST + "workers: -1\njwt_signing_key: /etc/k\nlogfile: stdout",
            FILE,
            check_file=lambda kind, path: f"no {kind} at {path}",
        )
    assert [(f.key, f.problem.rpartition("; ")[2], f.found) for f in caught.value.faults] == [
        ("workers", "must be a whole number from 0 to 1000 (0: one for each CPU)", "-1"),
        ("helper", "no program at /opt/prov/helper", "/opt/prov/helper"),
        ("logfile", "no log at stdout", "stdout"),
        ("jwt_signing_key", "no file at /etc/k", "/etc/k"),
    ]


def test_dead_and_unknown_keys_are_warned_about_by_name() -> None:
    config = parse(
        "broker_port: 4222\nrego_policy: x\ntoken_: s3cretvalue\nFoo: {a: 1}\nfeatures: {pky: true, jwt: false}"
    )
    assert config.warnings == (
        Fault(str(FILE), "broker_port", DEAD["broker_port"]),
        Fault(str(FILE), "rego_policy", DEAD["rego_policy"]),
        Fault(str(FILE), "token_", "no such key, it is ignored; did you mean token?"),
        Fault(str(FILE), "Foo", "no such key, it is ignored"),
        Fault(str(FILE), "features.pky", "no such key, it is ignored; did you mean features.pki?"),
    )
    assert not parse().warnings


def test_an_unknown_key_is_shown_within_bounds_and_without_control() -> None:
    (warning,) = parse(f'"\\e[31m{"x" * 900}": 1').warnings
    assert warning.key.isprintable()
    assert len(warning.key) < 150


def test_no_secret_is_in_the_repr() -> None:
    assert "s3cret" not in repr(parse("broker_provisioning_password: s3cret"))
    assert "toktoktok" not in repr(parse())


def told(content: str) -> list[Fault]:
    """The faults of a text; none when it is taken."""
    try:
        parse_config(content, FILE)
    except ConfigError as error:
        return list(error.faults)
    return []


@given(st.text(max_size=200), st.sampled_from([key.name for key in KEYS]))
def test_any_value_is_taken_or_told_on_one_line_a_fault(value: str, name: str) -> None:
    assert all(str(fault).isprintable() for fault in told(f"{name}: {value}\n"))


@given(st.text(alphabet="s3cret x:{}[]*&!'\"#|>-\n\t%@`,?", min_size=1, max_size=60))
def test_no_piece_of_a_secret_is_ever_printed(value: str) -> None:
    faults = told(f"helper: h\ntoken: Zq7{value}Zq7\n")
    assert not [f for f in faults if f.key in {"", "token"} and "Zq7" in f"{f.problem}{f.found}"]


# --- the tree beneath ----------------------------------------------------------------------------------------------


def test_the_tree_keeps_what_is_written_beside_what_yaml_makes_of_it() -> None:
    assert load("a: 010\nb: [yes, ~, 2026-01-31]\nc: {d: '1.5', e: 1.5}\n") == {
        "a": Scalar("a number", "010", 1),
        "b": [Scalar("true or false", "yes", 2), Scalar("nothing", "~", 2), Scalar("a date", "2026-01-31", 2)],
        "c": {"d": Scalar("text", "1.5", 3), "e": Scalar("a number with a point", "1.5", 3)},
    }
    assert load("") == load("# nothing\n") == {}


@given(st.text(max_size=300))
def test_any_text_is_a_tree_or_one_error(content: str) -> None:
    with suppress(NotYAML):
        load(content)


def test_a_misspelt_key_is_told_beside_the_one_that_is_missing() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("helper: /opt/h\ntokn: s3cret\n", FILE)
    assert str(caught.value).splitlines() == [
        f"{FILE}: token: is missing: must be a text of at most 128 characters",
        f"{FILE}: tokn: no such key, it is ignored; did you mean token?",
    ]
    assert [fault.key for fault in caught.value.faults] == ["token"]
