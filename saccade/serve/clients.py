"""Limits for each client address: the bytes that its unfinished requests hold, and how fast it may guess the token."""

import asyncio
import hashlib
import hmac
import ipaddress
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass

from saccade.serve.limits import Limits, RequestError

FIRST_TOKEN_DELAY = 0.05  # seconds, after one wrong token; doubles with each further one
FORGET_SECONDS = 60.0  # without a wrong token, after which a client is not delayed any more
MAX_REMEMBERED_CLIENTS = 10_000  # with wrong tokens; the oldest are forgotten
IPV6_PREFIX = 64  # bits that one customer of a network provider gets


def get_client_key(address: str) -> str:
    """Get the key that limits are counted by: the IPv4 address, or the network of an IPv6 address."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((int(ip), IPV6_PREFIX), strict=False))


@dataclass(eq=False)
class Transfer:
    """The body of one request while it is received and used."""

    client: str
    deadline: asyncio.Timeout | None = None  # for the rest of the body
    received: int = 0  # bytes
    complete: bool = False
    dropped: bool = False


class BodyRoom:
    """Counts the bytes of all bodies that have arrived; when they are too many, the largest unfinished body is dropped.

    Only what has arrived counts, so headers that announce a large body reserve nothing; and small requests are
    served however many large ones are being sent.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.total = limits, 0
        self.by_client: Counter[str] = Counter()
        self.transfers: set[Transfer] = set()

    def open(self, client: str) -> Transfer:
        transfer = Transfer(client)
        self.transfers.add(transfer)
        return transfer

    def add(self, transfer: Transfer, count: int) -> None:
        """Count bytes that have arrived; raise if it is this body that has to go."""
        if transfer.dropped:
            raise build_room_error()
        transfer.received += count
        self._count(transfer.client, count)
        while (candidates := self._list_candidates(transfer.client)) is not None:
            largest = max(candidates, key=lambda each: each.received, default=transfer)
            if largest is transfer:
                raise build_room_error()
            self._drop(largest)

    def close(self, transfer: Transfer) -> None:
        """Free the bytes of a body; a second call does nothing."""
        if transfer in self.transfers:
            self.transfers.remove(transfer)
            self._count(transfer.client, -transfer.received)

    def _list_candidates(self, client: str) -> list[Transfer] | None:
        """List the unfinished bodies of which one has to go; None if there is enough room."""
        client_is_over = self.by_client[client] > self.limits.max_client_bytes
        if not client_is_over and self.total <= self.limits.max_total_bytes:
            return None
        unfinished = (each for each in self.transfers if not each.complete)
        return [each for each in unfinished if each.client == client or not client_is_over]

    def _drop(self, transfer: Transfer) -> None:
        transfer.dropped = True
        if transfer.deadline is not None and not transfer.deadline.expired():
            transfer.deadline.reschedule(0)  # wakes the task that receives it
        self.close(transfer)

    def _count(self, client: str, count: int) -> None:
        self.total += count
        self.by_client[client] += count
        if self.by_client[client] <= 0:
            del self.by_client[client]


def build_room_error() -> RequestError:
    return RequestError(429, "the clients together are sending too much; try again in 2 s", {"retry-after": "2"})


class TokenCheck:
    """Compares tokens in constant time; clients that have sent wrong ones wait before the next comparison.

    A right token waits as long as a wrong one, so that an answer that does not come at once tells nothing. Requests
    without a token are refused at once, and are no guess.
    """

    def __init__(self, token: str, max_delay: float) -> None:
        self.digest, self.max_delay = hash_token(token), max_delay
        self.failures: OrderedDict[str, tuple[int, float]] = OrderedDict()  # count, and time.monotonic of the last

    async def check(self, client: str, authorization: str) -> None:
        kind, _, given = authorization.partition(" ")
        if not given:
            raise build_token_error("a token is needed")
        if (delay := self.get_delay(client)) > 0:
            await asyncio.sleep(delay)
        if not hmac.compare_digest(hash_token(given.strip()), self.digest) or kind.lower() != "bearer":
            self._count_failure(client)
            raise build_token_error("the token is wrong")

    def get_delay(self, client: str) -> float:
        """Get the seconds that the next comparison for a client waits."""
        count, last = self.failures.get(client, (0, 0.0))
        if not count or time.monotonic() - last > FORGET_SECONDS:
            return 0.0
        return float(min(self.max_delay, FIRST_TOKEN_DELAY * 2 ** min(count - 1, 20)))

    def _count_failure(self, client: str) -> None:
        is_remembered = self.get_delay(client) > 0
        count, _ = self.failures.pop(client, (0, 0.0))
        self.failures[client] = (count + 1 if is_remembered else 1, time.monotonic())
        if len(self.failures) > MAX_REMEMBERED_CLIENTS:
            self.failures.popitem(last=False)


def hash_token(token: str) -> bytes:
    """Hash a token, so that the time of a comparison does not tell its length."""
    return hashlib.sha256(token.encode()).digest()


def build_token_error(problem: str) -> RequestError:
    message = f"{problem}; send the header Authorization: Bearer TOKEN"
    return RequestError(401, message, {"www-authenticate": "Bearer"})
