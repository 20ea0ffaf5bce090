"""Where the embedded API is allowed to differ, and how little of an answer is then compared."""

from collections.abc import Callable

from tests.real.contract.exchange import Answer


def _causes_once(answer: Answer) -> Answer:
    """kube-apiserver checks metadata up to four times in an update and lists each cause as often,
    in the order of a Go map. Ours lists it once. The message is the same.
    """
    details = answer.body.get("details") or {"causes": ()}
    listed = sorted({tuple(sorted(cause.items())) for cause in details["causes"]})
    return Answer(answer.status, {**answer.body, "details": {**details, "causes": listed}})


def _without_dump(answer: Answer) -> Answer:
    """The message holds a whole Go struct, or what a Go parser thinks of the text."""
    body = {**answer.body, "message": _start(answer.body.get("message", ""))}
    if "details" in body:
        causes = [
            {**cause, "message": _start(cause["message"])}
            for cause in body["details"].get("causes", ())
        ]
        body["details"] = {**body["details"], **({"causes": causes} if causes else {})}
    return Answer(answer.status, body)


def _start(message: str) -> str:
    """Up to the first word that is not Kubernetes' own."""
    message = message.partition("\n")[0]  # a struct stands on the lines after
    for mark in ("json parse error", "cannot be handled as a"):
        at = message.find(mark)
        if at >= 0:
            return message[: at + len(mark)]
    return message


def _status_only(answer: Answer) -> Answer:
    """What a parser says of bytes that it cannot read is its own."""
    body = answer.body
    kept = {key: body.get(key) for key in ("kind", "status", "reason", "code")}
    return Answer(answer.status, kept)


DIFFERENCES: dict[str, Callable[[Answer], Answer]] = {
    "causes are listed once": _causes_once,
    "Go values in a message": _without_dump,
    "the words of a parser": _status_only,
}
