"""What exit codes mean; scripts and schedulers branch on them."""

from __future__ import annotations

from airflow_kafka_eos.errors import (
    InDoubtError,
    KafkaEosError,
    LedgerNotReadyError,
    ManifestError,
    TooLargeToCopyError,
    TransientError,
    UndecidableError,
)

OK = 0
#: something is wrong with a load or a transaction: in doubt, not decidable, hanging, left open
FOUND = 1
#: what was asked, or how it is set up: arguments, settings, logins, permissions
USAGE = 2
#: the same call may succeed later
TRANSIENT = 3

EXPLAINED = (
    "exit codes: 0 fine; 1 something is wrong with a load or transaction (in doubt, refused by a rule, hanging, left "
    "open); 2 arguments, settings or permissions; 3 not now: run it again"
)


def code_of(error: KafkaEosError) -> int:
    """The exit code of an error that ended a command."""
    if isinstance(error, LedgerNotReadyError):
        return USAGE  # to run it again changes nothing: it is another ledger, or nobody has made it
    if isinstance(error, TransientError):
        return TRANSIENT
    found = (InDoubtError, UndecidableError, ManifestError, TooLargeToCopyError)
    return FOUND if isinstance(error, found) else USAGE


def worst(codes: list[int]) -> int:
    """One code for several things: what a person must look at counts most, then what is to be tried again."""
    for code in (FOUND, USAGE, TRANSIENT):
        if code in codes:
            return code
    return OK
