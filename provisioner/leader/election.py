"""Leader election as a table: who stands where, what news makes of it, what the store is told (wire-protocol 10).

Pure. The store is one key in a bucket whose entries expire. Only two writes exist: create (nobody holds the key) and
compare-and-set (the revision is the one we know), so that two instances can never both be told yes. "No" and "don't
know" are different news, and only a confirmed write moves the end of a term.

    standing   news       becomes    and does
    standby    granted    leader     opens a term
    standby    refused    standby    waits
    standby    gone       standby    looks for the bucket
    standby    silent     standby    waits
    leader     granted    leader     extends the term
    leader     refused    standby    closes the term: somebody else wrote
    leader     gone       standby    closes the term: there is no key any more to hold
    leader     silent     leader     asks again soon; the term's own end stands
    leader     over       standby    closes the term: its time passed without a confirmed renewal
"""

from enum import Enum
from typing import Any

from attrs import frozen

from provisioner import strictjson
from provisioner.errors import BadReply

BUCKET = "CHORIA_LEADER_ELECTION"
STREAM = f"KV_{BUCKET}"
KEY = "provisioner"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
"""Header of a write: 0 for create, else the revision that must be the latest."""

CHORIA_API = "choria.streams"
"""Prefix on a Choria broker, where the bucket lives in another account."""
PLAIN_API = "$JS.API"
"""Prefix on a plain NATS server with JetStream."""

HANDOVER = "provisioning.provisioners.handover"
"""Where a leader that stops tells the others the revision to follow. Servers may neither publish nor hear it (1.7)."""

_WRONG_SEQUENCE = {10071, 10164}
_NOT_FOUND = {10059}


class Standing(Enum):
    """Where we stand."""

    STANDBY = "standby"
    LEADER = "leader"


class News(Enum):
    """What came of the last thing we tried."""

    GRANTED = "granted"
    REFUSED = "refused"
    GONE = "gone"
    SILENT = "silent"
    OVER = "over"


class Act(Enum):
    """What is to be done about it."""

    OPEN = "open a term"
    EXTEND = "extend the term"
    CLOSE = "close the term"
    WAIT = "try again later"
    HURRY = "try again soon"
    BIND = "look for the bucket"


TRANSITIONS: dict[tuple[Standing, News], tuple[Standing, Act]] = {
    (Standing.STANDBY, News.GRANTED): (Standing.LEADER, Act.OPEN),
    (Standing.STANDBY, News.REFUSED): (Standing.STANDBY, Act.WAIT),
    (Standing.STANDBY, News.GONE): (Standing.STANDBY, Act.BIND),
    (Standing.STANDBY, News.SILENT): (Standing.STANDBY, Act.WAIT),
    (Standing.STANDBY, News.OVER): (Standing.STANDBY, Act.WAIT),
    (Standing.LEADER, News.GRANTED): (Standing.LEADER, Act.EXTEND),
    (Standing.LEADER, News.REFUSED): (Standing.STANDBY, Act.CLOSE),
    (Standing.LEADER, News.GONE): (Standing.STANDBY, Act.CLOSE),
    (Standing.LEADER, News.SILENT): (Standing.LEADER, Act.HURRY),
    (Standing.LEADER, News.OVER): (Standing.STANDBY, Act.CLOSE),
}


@frozen
class Rhythm:
    """How often, from the bucket's time to live. All in seconds.

    A leader has five chances to renew within one time to live, and stands down a tenth of it before others could
    see the key expire. A standby asks often enough to act within five seconds of the key's expiry.
    """

    ttl: float

    @property
    def renew(self) -> float:
        """From one renewal to the next."""
        return self.ttl / 5

    @property
    def hurry(self) -> float:
        """From a renewal without an answer to the next."""
        return min(1.0, self.ttl / 20)

    @property
    def campaign(self) -> float:
        """From one try of a standby to the next."""
        return min(2.0, self.ttl / 4)

    @property
    def answer(self) -> float:
        """How long one answer is awaited."""
        return min(5.0, self.ttl / 5)

    def term_end(self, asked: float) -> float:
        """When a term ends whose last confirmed renewal was *sent* at ``asked``."""
        return asked + 0.9 * self.ttl


@frozen
class Bucket:
    """A bucket that is there.

    Attributes:
        api: the prefix it was found under.
        ttl: seconds after which an entry expires.
        created: the server's own words for when it was made: another text is another bucket.
    """

    api: str
    ttl: float
    created: str

    @property
    def subject(self) -> str:
        """Where the key is written."""
        key = f"$KV.{BUCKET}.{KEY}"
        return key if self.api == PLAIN_API else f"{self.api}.{key}"


def info_subject(api: str) -> str:
    """The question whether the bucket is there."""
    return f"{api}.STREAM.INFO.{STREAM}"


def create_bucket_request(ttl: float) -> tuple[str, bytes]:
    """Subject and body that make the bucket on a plain NATS server, as a Choria broker makes it (10.1)."""
    config = {
        "name": STREAM,
        "subjects": [f"$KV.{BUCKET}.>"],
        "retention": "limits",
        "max_age": int(ttl * 1e9),
        "max_msgs_per_subject": 1,
        "max_msg_size": 1024,
        "discard": "new",
        "storage": "file",
        "num_replicas": 1,
        "allow_direct": True,
        "deny_delete": True,
        "allow_rollup_hdrs": True,
    }
    return f"{PLAIN_API}.STREAM.CREATE.{STREAM}", strictjson.dumps(config).encode()


def read_bucket(api: str, data: bytes) -> Bucket | None:
    """The answer to ``info_subject``: the bucket, or None when there is none.

    Raises:
        BadReply: not an answer, or a bucket that can't serve: no time to live, or under two seconds.
    """
    answer = _answer(data)
    if (error := answer.get("error")) is not None:
        if isinstance(error, dict) and (error.get("err_code") in _NOT_FOUND or error.get("code") == 404):
            return None
        raise BadReply(f"the store refuses: {_words(error)}")
    config = answer.get("config")
    if not isinstance(config, dict) or not isinstance(config.get("max_age"), int):
        raise BadReply("the store's answer has no config with a max_age")
    ttl = config["max_age"] / 1e9
    if not 2 <= ttl <= 3600:
        raise BadReply(f"bucket {BUCKET} keeps its entries for {ttl:g} s; an election needs 2 s to 1 h")
    return Bucket(api, ttl, str(answer.get("created", "")))


def read_write(data: bytes) -> tuple[News, int]:
    """The answer to a write: what it means, and the new revision (0 unless granted).

    Raises:
        BadReply: not an answer.
    """
    answer = _answer(data)
    if (error := answer.get("error")) is not None:
        code = error.get("err_code") if isinstance(error, dict) else None
        if code in _WRONG_SEQUENCE:
            return News.REFUSED, 0
        if code in _NOT_FOUND:
            return News.GONE, 0
        raise BadReply(f"the store refuses: {_words(error)}")
    seq = answer.get("seq")
    if answer.get("stream") != STREAM or type(seq) is not int or seq < 1:
        raise BadReply("the store's answer has no stream and seq")
    return News.GRANTED, seq


def encode_handover(revision: int, identity: str) -> bytes:
    """Tells the standbys which revision to follow; revision 0 only asks who is there."""
    return strictjson.dumps({"revision": revision, "from": identity}).encode()


def decode_handover(data: bytes) -> tuple[int, str]:
    """Revision and sender of a hand-over.

    Raises:
        BadReply: it is none.
    """
    answer = _answer(data)
    revision, sender = answer.get("revision"), answer.get("from")
    if type(revision) is not int or revision < 0 or not isinstance(sender, str):
        raise BadReply("not a hand-over")
    return revision, sender


def _answer(data: bytes) -> dict[str, Any]:
    if len(data) > 64 * 1024:
        raise BadReply("the answer is too long")
    try:
        answer = strictjson.loads(data)
    except strictjson.NotJSON as error:
        raise BadReply(f"the answer is not JSON: {error}") from None
    if not isinstance(answer, dict):
        raise BadReply("the answer is not an object")
    return answer


def _words(error: object) -> str:
    text = error.get("description") if isinstance(error, dict) else None
    return "".join(c if c.isprintable() else " " for c in str(text or "without a reason"))[:200]
