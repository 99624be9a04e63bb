"""An error as a reason for the ledger and the page: its type and message, in a line or two, without secrets. And how a
process ended, by its exit code. Pure.

More people read the ledger than a task's log, and nothing masks it. So what is written there is masked first: the
secrets that the caller knows, and whatever stands where passwords stand.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from airflow_kafka_eos.errors import KafkaEosError

LONGEST = 600
_MASK = "***"
#: What is shorter occurs by chance.
_SHORTEST_SECRET = 4
_WORDS = r"password|passwd|pwd|secret|token|credential|api[_-]?key|access[_-]?key|account[_-]?key|signature|jaas"
_ASSIGNED = re.compile(rf"(?i)([\w.-]*(?:{_WORDS})[\w.-]*[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&)]+)")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")


def reason_of(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """What to note of an error: of ours its message and remedy, of another its type and first two lines.

    What Airflow's exceptions were raised from says more than they do.
    """
    ours = _of_ours(error)
    if ours is not None:
        remedy = f" {ours.remedy.rstrip('. ')}." if ours.remedy else ""
        return noted(f"{type(ours).__name__}: {ours.message.rstrip('. ')}.{remedy}", secrets)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()][:2]
    text = " ".join(lines)
    kind = type(error)
    if kind.__name__ in ("AirflowException", "AirflowFailException") and text:
        return noted(text, secrets)  # whoever raised it has said what it is
    return noted(f"{kind.__name__}: {text}" if text else kind.__name__, secrets)


def noted(text: str, secrets: Iterable[str] = ()) -> str:
    """A text fit for the ledger: one line, without secrets, and short."""
    text = without_secrets(" ".join(text.split()), secrets)
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rpartition(" ")[0] + " …"


def without_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """Mask what is known to be secret, and what looks so.

    :param secrets: as they are; in URLs, too, they are found.
    """
    text = _LOGIN.sub(f"{_MASK}@", without_known(text, secrets))
    text = _BEARER.sub(rf"\1 {_MASK}", text)
    return _ASSIGNED.sub(rf"\1{_MASK}", text)


def how_it_ended(code: int) -> str:
    """Of an exit code, as Popen has it or a shell (128 and the signal's number)."""
    number = -code if code < 0 else code - 128
    try:
        return f"killed by {signal.Signals(number).name}" if number > 0 else f"exit code {code}"
    except ValueError:
        return f"exit code {code}"


def without_known(text: str, secrets: Iterable[str]) -> str:
    """Mask these alone, where somebody has to read the rest as it is: a traceback."""
    forms = {form(s) for s in secrets if len(s) >= _SHORTEST_SECRET for form in (str, quote, quote_plus)}
    for secret in sorted(forms, key=len, reverse=True):
        text = text.replace(secret, _MASK)
    return text


def causes(error: BaseException, *, handled_too: bool = False) -> Iterator[BaseException]:
    """An error, what it was raised from, and so on; each once: the chain may be a circle (seen with Spark Connect).

    :param handled_too: where an error was raised from nothing, go on with the one that was being handled then.
    """
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or (found.__context__ if handled_too else None)


def _of_ours(error: BaseException) -> KafkaEosError | None:
    return next((one for one in causes(error) if isinstance(one, KafkaEosError)), None)
