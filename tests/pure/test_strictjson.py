"""How deep JSON from strangers may be: the same on each Python."""

import pytest

from provisioner import strictjson
from provisioner.strictjson import MAX_DEPTH, NotJSON


@pytest.mark.parametrize(
    ("opens", "closes"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")], ids=["list", "object", "both"]
)
def test_a_bound_on_depth(opens: str, closes: str) -> None:
    levels = len(closes)
    most = MAX_DEPTH // levels
    # The innermost value is no level.
    assert strictjson.loads(opens * most + "1" + closes * most)
    for more in (most + 1, 5000, 1_000_000):
        with pytest.raises(NotJSON, match="nested too deep"):
            strictjson.loads(opens * more + "1" + closes * more)


def test_many_beside_one_another_are_fine() -> None:
    wide = "[" + ",".join(["[{}]"] * 10_000) + "]"
    assert len(strictjson.loads(wide)) == 10_000


def test_brackets_in_a_text_are_no_levels() -> None:
    assert strictjson.loads('"' + "[{" * 1000 + '"') == "[{" * 1000
