"""``helper``: each fault of a helper, tried without a fleet; the complaint names it."""

import json
import re
import sys
from pathlib import Path

import pytest

from provisioner.cli.choria import PROGRAM
from provisioner.errors import EXIT_FINDING, EXIT_OK, EXIT_REFUSED
from tests.conformance.recordings import key
from tests.integration.daemon import write_helper

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
CA = (Path(__file__).parents[2] / "fixtures" / "keys" / "ca-v1.pem").read_text()
GOOD = '"configuration":{"identity":"x","plugin.choria.server.provision":"0"}'


def says(answer: str) -> str:
    return f"#!/bin/sh\ncat >/dev/null\ncat <<'END'\n{answer}\nEND\n"


def tried(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = PROGRAM.main(["helper", *words])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, printed.out + printed.err


def pem(text: str) -> str:
    return json.dumps(text)


FAULTS: dict[str, tuple[str, str]] = {
    "exits with a code": (
        f"#!/bin/sh\necho '{{{GOOD}}}'\necho why >&2\nexit 3\n",
        "helper_failed: .* exited with code 3; last on stderr: why",
    ),
    "ended by a signal": (
        f"#!/bin/sh\necho '{{{GOOD}}}'\nkill -9 $$\n",
        r"helper_failed: .* was ended by signal 9 \(SIGKILL\)",
    ),
    "says nothing": ("#!/bin/sh\nexit 0\n", "helper_silent: .* zero bytes received"),
    "says too much": (
        "#!/bin/sh\nyes | head -c 3000000\n",
        "helper_too_much: .* wrote more than 1048576 bytes and was killed",
    ),
    "is no JSON": (
        says("configuration: {}"),
        "helper_bad_reply: its answer is not JSON: Expecting value at character 0",
    ),
    "is no UTF-8": (
        '#!/bin/sh\nprintf \'{"msg":"\\377"}\'\n',
        "helper_bad_reply: its answer is not JSON: not UTF-8 at byte",
    ),
    "isn't a number": (says('{"defer":NaN}'), "helper_bad_reply: its answer is not JSON: NaN is not JSON"),
    "defers in quotes": (says('{"defer":"false"}'), "helper_bad_reply: .*defer is a string, must be a boolean"),
    "a number in the configuration": (
        says('{"configuration":{"registerinterval":300}}'),
        "helper_bad_reply: .*configuration has at 'registerinterval' a value that is a number, must be a string",
    ),
    "nested too deep": (
        "#!/bin/sh\nhead -c 20000 /dev/zero | tr '\\0' '['\n",
        "helper_bad_reply: its answer is not JSON: nested too deep",
    ),
    "half a surrogate": (says('{"configuration":{"a":"\\ud800"}}'), "helper_bad_reply: .*half of a surrogate pair"),
    "a key twice": (says(f"{{{GOOD},{GOOD}}}"), "helper_bad_reply: .*the same key twice"),
    "an empty configuration": (says('{"configuration":{}}'), "bad_configuration: the helper's configuration is empty"),
    "goes on provisioning": (
        says('{"configuration":{"plugin.choria.server.provision":"true"}}'),
        "bad_configuration: plugin.choria.server.provision is on",
    ),
    "a line break": (
        says('{"configuration":{"a":"b\\nc=d"}}'),
        "bad_configuration: the value of configuration key a has a line break",
    ),
    "a policy out of its directory": (
        says(f'{{{GOOD},"action_policies":{{"../x.policy":"y"}}}}'),
        r"bad_configuration: .*\.\./x\.policy",
    ),
    "a policy of another kind": (
        says(f'{{{GOOD},"opa_policies":{{"x.policy":"y"}}}}'),
        "bad_configuration: .*x.policy.*rego",
    ),
    "a certificate alone": (
        says(f'{{{GOOD},"certificate":"x"}}'),
        "bad_configuration: the helper gave certificate without ca and ssldir",
    ),
    "a key that can't be sealed": (
        says(f'{{{GOOD},"certificate":{pem(CA)},"ca":{pem(CA)},"ssldir":"/s","key":"secret"}}'),
        "seal_failed: ",
    ),
    "waits for ever": (
        says(f'{{{GOOD},"defer":true,"defer_for":"for ever"}}'),
        "helper_bad_reply: .*defer_for must be a duration such as 90s",
    ),
    "a reason of many words": (
        says('{"defer":true,"reason":"not now"}'),
        "helper_bad_reply: .*reason must be one word",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_complaint_names_the_fault(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, complaint = FAULTS[fault]
    code, out = tried(capsys, "--command", str(write_helper(tmp_path, text)))
    assert code == EXIT_FINDING
    assert re.search(complaint, out), out
    assert "what to do: " in out
    assert "secret" not in out
    (result,) = [line for line in out.splitlines() if line.startswith("result")]
    assert result == f"result   a cycle would fail as {complaint.partition(':')[0]}"


@pytest.mark.slow
def test_a_slow_one_is_killed_at_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = tried(capsys, "--command", str(write_helper(tmp_path, "#!/bin/sh\ntrap '' TERM\nsleep 60\n")))
    assert code == EXIT_FINDING
    assert re.search("helper_too_slow: .* had not finished after 10 s and was killed", out)


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda path: None, "can't be looked at: No such file or directory"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.write_text("#!/bin/sh\n"), "is not executable for this user; try chmod \\+x"),
        (lambda path: (path.touch(), path.chmod(0o755)), "is empty"),
        (lambda path: (path.write_text("#!/no/such\n"), path.chmod(0o755)), "names in its first line the interpreter"),
    ],
)
def test_one_that_cannot_be_started_is_refused(
    prepare: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(prepare)
    prepare(tmp_path / "h")
    code, out = tried(capsys, "--command", str(tmp_path / "h"))
    assert code == EXIT_REFUSED
    assert re.fullmatch(f"choria-provisioner: --command: .*{said}.*\n", out)
    assert tried(capsys, "--command", "'open")[0] == EXIT_REFUSED


def test_every_complaint_is_found_and_slips_of_the_pen_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = '{"configuraton":{},"key":"x","action_policies":{"a.rego":"b"}}'
    code, out = tried(capsys, "--command", str(write_helper(tmp_path, says(answer))))
    assert code == EXIT_FINDING
    assert out.count("\n         bad_configuration: ") == 3
    assert "seal_failed: " in out
    assert "the key 'configuraton' is not known and is ignored; did you mean configuration?" in out


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ('{"defer":true,"defer_for":"2h","msg":"later","reason":"maintenance"}', "deferred: later"),
        ('{"shutdown":true,"msg":"old"}', "shut_down: old"),
        ('{"upgrade":"9.9"}', "upgrading: from 0.30.2 to 9.9"),
        ('{"upgrade":"0.30.2",' + GOOD + "}", "provisioned"),
        ("{" + GOOD + "}", "provisioned"),
    ],
)
def test_what_would_come_of_it(answer: str, result: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    helper = write_helper(tmp_path, says(answer))
    code, out = tried(capsys, "--command", str(helper), "--feature", "jwt", "--feature", "upgrades")
    assert code == EXIT_OK
    assert out.endswith(f"result   a cycle would end as {result}\n")


def test_an_upgrade_counts_only_with_its_feature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    helper = write_helper(tmp_path, says('{"upgrade":"9.9",' + GOOD + "}"))
    code, out = tried(capsys, "--command", str(helper))
    assert (code, out.endswith("result   a cycle would end as provisioned\n")) == (EXIT_OK, True)


def test_the_input_has_what_the_features_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    helper = write_helper(tmp_path, f"#!/bin/sh\ncat >&2\necho '{{{GOOD}}}'\n")
    for features in ([], ["pki"], ["ed25519"]):
        flags = [word for feature in features for word in ("--feature", feature)]
        code, _ = tried(capsys, "--command", str(helper), "--record", str(tmp_path), *flags)
        told = json.loads((tmp_path / "n0001.example.net.json").read_bytes())
        assert code == EXIT_OK
        assert (told["jwt"] is not None) == (features != ["pki"])
        assert (told["csr"] is not None) == (features == ["pki"])
        assert (told["ed25519_pubkey"] is not None) == (features == ["ed25519"])
        if told["jwt"]:
            assert told["jwt"]["cht"] == "****"


def test_a_recorded_input_is_handed_on_byte_for_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    helper = write_helper(tmp_path, f"#!/bin/sh\ncat >'{tmp_path}/got'\necho '{{{GOOD}}}'\n")
    code, out = tried(capsys, "--command", str(helper), "--input", str(EXAMPLES / "input.json"))
    assert code == EXIT_OK
    assert (tmp_path / "got").read_bytes() == (EXAMPLES / "input.json").read_bytes()
    assert f"server   n1.example.net, from {EXAMPLES / 'input.json'}, " in out


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"identity":1,"inventory":"{}"}',
        '{"identity":"a","inventory":"x"}',
        '{"identity":"a","inventory":"{}","jwt":1}',
        '{"identity":"a","inventory":"{}","csr":{"ssldir":1}}',
    ],
)
def test_an_input_that_is_none(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "in.json"
    file.write_text(content)
    code, out = tried(capsys, "--command", "/bin/true", "--input", str(file))
    assert code == EXIT_REFUSED
    assert out.startswith(f"choria-provisioner: {file}: is no helper input: ")
    assert tried(capsys, "--command", "/bin/true", "--input", str(tmp_path / "none"))[0] == EXIT_REFUSED


def test_a_fleet_is_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"""#!/bin/sh
read -r input
case "$input" in
*n0003.*) echo 'no idea' >&2; exit 1 ;;
*n0007.*) echo '{{"configuration":{{}}}}' ;;
*n0005.*) sleep 0.7; echo '{{"defer":true}}' ;;
*) echo '{{{GOOD}}}' ;;
esac
"""
    words = [
        "--command",
        str(write_helper(tmp_path, text)),
        "--fleet",
        "12",
        "--workers",
        "4",
        "--record",
        str(tmp_path),
    ]
    code, out = tried(capsys, *words)
    assert code == EXIT_FINDING
    counted = dict(re.findall(r"(?m)^(\w+) +(\d+) +[\d.]+s +[\d.]+s +[\d.]+s$", out))
    assert counted == {"provisioned": "9", "helper_failed": "1", "bad_configuration": "1", "deferred": "1"}
    slowest = out.partition("slowest inputs\n")[2].splitlines()[0]
    assert re.fullmatch(r" +[\d.]+ s  n0005\.example\.net  deferred", slowest)
    assert "helper_failed: n0003.example.net\n" in out
    assert "last on stderr: no idea" in out
    assert len(list(tmp_path.glob("n*.json"))) == 12
    assert max(map(len, out.partition("\n\nbad_conf")[0].splitlines())) <= 80


@pytest.mark.parametrize(
    ("example", "feature"),
    [("helper.py", "jwt"), (f"helper_issuer.py --issuer-public {'ab' * 32} --ca /ca", "ed25519")],
)
def test_the_samples_of_the_documentation(example: str, feature: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{sys.executable} {EXAMPLES / example}"
    code, out = tried(capsys, "--command", command, "--feature", feature)
    assert (code, out.endswith("result   a cycle would end as provisioned\n")) == (EXIT_OK, True)


def test_the_configuration_may_be_given_instead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    helper = write_helper(tmp_path, says("{" + GOOD + "}"))
    (tmp_path / "p.yaml").write_text(f"helper: {helper} --site 'New York'\ntoken: toktoktok\n")
    code, out = tried(capsys, "--config", str(tmp_path / "p.yaml"))
    assert code == EXIT_OK
    assert out.startswith(f"helper   {helper} --site New York\nserver   n0001.example.net, a sample, features none, ")


def test_a_private_key_is_never_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private = key("jwt-signer-rsa.key")
    answer = json.dumps(
        {
            "configuration": {"plugin.choria.server.provision": "0"},
            "certificate": CA,
            "ca": CA,
            "ssldir": "/s",
            "key": private,
        }
    )
    code, out = tried(capsys, "--command", str(write_helper(tmp_path, says(answer))))
    assert code == EXIT_OK
    assert "key: a private key, not shown" in out
    assert private.splitlines()[1] not in out
    assert re.search(r"certificate: CN=.*, serial [0-9a-f]+, until \d{4}-", out)


def test_stream_mode_is_tried_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"#!/bin/sh\necho started >>'{tmp_path}/starts'\nwhile read -r line; do echo '{{{GOOD}}}'; done\n"
    helper = write_helper(tmp_path, text)
    (tmp_path / "p.yaml").write_text(f"helper: {helper}\nhelper_mode: stream\nhelper_processes: 2\ntoken: toktoktok\n")
    code, out = tried(capsys, "--config", str(tmp_path / "p.yaml"), "--fleet", "10")
    assert (code, "provisioned               10" in out) == (EXIT_OK, True)
    assert len((tmp_path / "starts").read_text().split()) <= 2
