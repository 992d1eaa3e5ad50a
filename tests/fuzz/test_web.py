"""When an answer of the fuzzed server is complete."""

import pytest
from web import is_complete

GET, HEAD = b"GET / HTTP/1.1\r\n\r\n", b"HEAD / HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "request_bytes", "complete"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", GET, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", GET, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n", GET, False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n", HEAD, True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", GET, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", GET, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", GET, False),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil it is closed", GET, False),
        (b"", GET, False),
    ],
)
def test_an_answer_is_complete_before_the_connection_closes(answer, request_bytes, complete):
    assert is_complete(answer, request_bytes) is complete
