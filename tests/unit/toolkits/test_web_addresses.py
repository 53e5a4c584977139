"""What is public and what is not; what a URL means; where an agent may go."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.every import every

import holdfast as hf
from holdfast.errors import InvalidArgument
from holdfast.toolkits.web import UrlInvalid, UrlRefused, web
from holdfast.toolkits.web.urls import (
    UrlPolicy,
    find_closed_range,
    parse_ipv4,
    parse_url,
)


def policy(**said: Any) -> UrlPolicy:
    given: dict[str, Any] = {
        "allow": None,
        "deny": (),
        "allow_private": (),
        "schemes": ("https", "http"),
        "ports": (80, 443),
        "downgrade": False,
    }
    return UrlPolicy(**{**given, **said})


def allowed(url: str, **said: Any) -> bool:
    try:
        policy(**said).check(parse_url(url))
    except UrlRefused:
        return False
    return True


# ---- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("0.0.0.0", "unspecified"),  # noqa: S104  refused, not bound
        ("10.1.2.3", "private"),
        ("100.64.0.1", "CGNAT"),
        ("100.127.255.255", "CGNAT"),
        ("100.100.100.200", "metadata"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("168.63.129.16", "metadata"),
        ("169.254.1.1", "link-local"),
        ("169.254.169.254", "metadata"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.0.0.192", "protocols"),
        ("192.168.0.1", "private"),
        ("198.19.255.255", "benchmarks"),
        ("203.0.113.9", "documentation"),
        ("224.0.0.1", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "broadcast"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("::7f00:1", "compatible"),
        ("::ffff:127.0.0.1", "mapped"),
        ("::ffff:93.184.216.34", "mapped"),
        ("::ffff:0:127.0.0.1", "translated"),
        ("64:ff9b::169.254.169.254", "NAT64"),
        ("64:ff9b:1::10.0.0.1", "NAT64"),
        ("100::1", "discards"),
        ("2001::1", "Teredo"),
        ("2001:10::1", "protocols"),
        ("2001:db8::1", "documentation"),
        ("2002:7f00:1::", "6to4"),
        ("2606:4700::5efe:7f00:1", "ISATAP"),
        ("2606:4700::200:5efe:7f00:1", "ISATAP"),
        ("3fff::1", "documentation"),
        ("4000::1", "public internet"),
        ("fc00::1", "private"),
        ("fd00:ec2::254", "metadata"),
        ("fe80::1", "link-local"),
        ("fec0::1", "site-local"),
        ("ff02::1", "multicast"),
    ],
)
def test_an_address_that_is_not_public_has_a_range_that_says_why(address: str, what: str) -> None:
    closed = find_closed_range(ip_address(address))
    assert closed is not None
    assert what in closed.what


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111"])
def test_a_public_address_has_none(address: str) -> None:
    assert find_closed_range(ip_address(address)) is None


@given(st.ip_addresses())
def test_whatever_python_holds_for_private_is_not_public(address: IPv4Address | IPv6Address) -> None:
    if not address.is_global or address.is_multicast:
        assert find_closed_range(address) is not None


@given(st.ip_addresses(v=4))
def test_no_ipv6_address_that_carries_another_is_public(inner: IPv4Address) -> None:
    number = int(inner)
    for carrier in (number, 0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80):
        assert find_closed_range(IPv6Address(carrier)) is not None


@given(st.ip_addresses(v=4), st.integers(1, 4), st.lists(st.sampled_from("dox"), min_size=4, max_size=4))
def test_numbers_are_read_as_the_c_library_reads_them(address: IPv4Address, parts: int, bases: list[str]) -> None:
    octets = address.packed
    numbers = [*octets[: parts - 1], int.from_bytes(octets[parts - 1 :], "big")]
    forms = {"d": "{}", "o": "0{:o}", "x": "0x{:X}"}
    written = ".".join(forms[base].format(number) for base, number in zip(bases, numbers, strict=False))
    assert parse_ipv4(written) == address == IPv4Address(socket.inet_aton(written))


# ---- URLs ------------------------------------------------------------------------------------------------------------


@every(
    ("text", "url"),
    [
        ("https://example.com", "https://example.com/"),
        (" HTTPS://Example.COM:443/a?b=c#d ", "https://example.com/a?b=c"),
        ("http://example.com.:80", "http://example.com/"),
        ("http://example.com:8080?q", "http://example.com:8080/?q"),
        ("https://bücher.example/ü?ä=ö", "https://xn--bcher-kva.example/%C3%BC?%C3%A4=%C3%B6"),
        ("https://example.com/a b%20c%zz\\d", "https://example.com/a%20b%20c%25zz%5Cd"),
        ("https://[2606:4700:0:0::1]/", "https://[2606:4700::1]/"),
        ("https://example.com/@user:x", "https://example.com/@user:x"),
        ("https://example.com?@evil.example", "https://example.com/?@evil.example"),
    ],
)
def test_a_url_has_one_form(text: str, url: str) -> None:
    assert str(parse_url(text)) == url


@every(
    "text",
    [
        *("", "example.com", "//example.com", "https:example.com", "https:/example.com", "https://", "https:///x"),
        *("file:///etc/passwd", "ftp://example.com/", "gopher://example.com", "data:text/html,x", "javascript:alert()"),
        *("http://user@example.com/", "http://user:pw@example.com/", "http://example.com@evil.example/"),
        *("http://a@b@c/", "http://example.com\\@evil.example/", "http://evil.example\\.example.com/"),
        *("http://exa mple.com/", "http://example.com\x00.evil.example/", "http://example.com\n/", "http://a\tb/"),
        *("http://example..com/", "http://.example.com/", "http://example.com../", "http://-a.example/"),
        *("http://%6c%6f%63alhost/", "http://127.0.0.1%00/", "http://[fe80::1%25eth0]/", "http://[::1", "http://::1/"),
        *("http://[::1]x/", "http://[::1]:80:80/", "http://[127.0.0.1]/", "http://[::1].example.com/"),
        *("http://example.com:0/", "http://example.com:65536/", "http://example.com:-1/", "http://a.example:8\u0660/"),
        *("http://example.com:80a/", f"http://{'a' * 64}.example/", f"http://{'a.' * 130}example/", "http://\ud800/"),
        *("http://exa<mple.com/", "http://exa*mple.com/", "http://xn--\u00fc.example/"),
        f"http://example.com/{'a' * 9000}",
    ],
)  # fmt: skip
def test_what_can_be_misread_is_no_url(text: str) -> None:
    with pytest.raises(UrlInvalid):
        parse_url(text)


@every(
    "host",
    [
        *("2130706433", "0x7f000001", "0X7F000001", "017700000001", "0x7f.1", "127.1", "127.0.1", "0177.0.0.1"),
        *("127.0.0.01", "0x7f.0x0.0x0.0x1", "00000177.0.0.1", "0", "0x", "1.2.3.4.5", "256.1.1.1", "1.1.1.256"),
        *("4294967296", "a.1", "1.example.0x7f", "08.0.0.1", "99999999999999999999999999999999999999999999999999"),
        *("①②⑦.⓪.1", "\uff11\uff12\uff17.1", "127。1", "0x7f。1"),
    ],
)  # fmt: skip
def test_an_address_in_odd_clothes_is_no_url(host: str) -> None:
    with pytest.raises(UrlInvalid):
        parse_url(f"http://{host}/")


@every("host", ["127.0.0.1", "127.0.0.1.", "①②⑦.⓪.⓪.1", "127。0。0。1", "[::1]", "[0:0:0:0:0:0:0:1]"])
def test_an_address_in_plain_clothes_is_known_for_one(host: str) -> None:
    assert parse_url(f"http://{host}/").address in {ip_address("127.0.0.1"), ip_address("::1")}


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/x", "https://example.com/x"),
        ("y?z", "https://example.com/d/y?z"),
        ("//other.example/x", "https://other.example/x"),
        ("http://other.example", "http://other.example/"),
        ("/\\evil.example", "https://example.com/%5Cevil.example"),
    ],
)
def test_a_redirect_is_relative_to_where_it_stands(location: str, url: str) -> None:
    assert str(policy(downgrade=True).follow(parse_url("https://example.com/d/p"), location)) == url


# ---- where an agent may go -------------------------------------------------------------------------------------------


@every(
    ("rule", "host", "matches"),
    [
        ("example.com", "example.com", True),
        ("example.com", "www.example.com", False),
        ("EXAMPLE.com.", "example.com", True),
        ("*.example.com", "www.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "evilexample.com", False),
        ("*.example.com", "www.example.com.evil.example", False),
        ("bücher.example", "xn--bcher-kva.example", True),
        ("[2606:4700::1]", "[2606:4700:0::1]", True),
    ],
)
def test_a_rule_is_compared_label_by_label(rule: str, host: str, matches: bool) -> None:
    assert allowed(f"https://{host}/", allow=[rule]) is matches
    assert allowed(f"https://{host}/", deny=[rule]) is not matches


def test_denied_wins_over_allowed() -> None:
    assert not allowed("https://www.example.com/", allow=["*.example.com"], deny=["www.example.com"])


def test_a_denied_place_stays_denied_when_it_may_lie_inside() -> None:
    assert not allowed("http://127.0.0.1:80/", deny=["127.0.0.1"], allow_private=["127.0.0.1:80"])


def test_an_empty_list_allows_nothing() -> None:
    assert not allowed("https://example.com/", allow=[])


@pytest.mark.parametrize("what", ["allow", "deny", "allow_private"])
def test_what_is_no_text_is_named_before_what_is_no_host(what: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{what} 5 is not valid: text"):
        policy(**{what: ["no host!", 5]})


@pytest.mark.parametrize("port", [22, 25, 6379, 11211, 3306])
def test_ports_that_are_not_of_the_web_are_refused(port: int) -> None:
    assert not allowed(f"http://example.com:{port}/")


def test_a_scheme_that_was_not_allowed_is_refused() -> None:
    assert not allowed("http://example.com/", schemes=["https"])


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:81/", "http://127.0.0.2/", "http://[::1]/", "http://10.0.0.1/", "http://169.254.169.254/"]
)
def test_an_address_that_may_be_visited_is_good_for_itself_and_its_port(url: str) -> None:
    assert allowed("http://127.0.0.1:80/", allow_private=["127.0.0.1:80"])
    assert not allowed(url, allow_private=["127.0.0.1:80"], ports=range(1, 65_536))


def leads_to(address: str, **said: Any) -> bool:
    try:
        policy(**said).check_addresses(parse_url("http://wiki.example/"), [ip_address(address)])
    except UrlRefused:
        return False
    return True


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "::1", "fd00::1", "100.64.0.1"])
def test_a_name_that_may_lie_inside_may_lead_there(address: str) -> None:
    assert leads_to(address, allow_private=["wiki.example:80"])
    assert not leads_to(address, allow_private=["wiki.example:81"])


@every("address", ["169.254.169.254", "169.254.0.1", "fe80::1", "100.100.100.200", "fd00:ec2::254", "::", "224.0.0.1"])
def test_no_name_may_lead_to_link_local_or_metadata_addresses(address: str) -> None:
    assert not leads_to(address, allow_private=["wiki.example:80"])


def test_one_inside_address_among_public_ones_is_enough_to_refuse_a_name() -> None:
    with pytest.raises(UrlRefused):
        policy().check_addresses(parse_url("http://a.example/"), [ip_address("1.1.1.1"), ip_address("10.0.0.1")])


def test_a_refusal_does_not_tell_which_inside_address_a_name_has() -> None:
    with pytest.raises(UrlRefused) as refused:
        policy().check_addresses(parse_url("http://a.example/"), [ip_address("10.11.12.13")])
    assert "10.11.12.13" not in str(refused.value)


@every(
    "said",
    [
        {"allow": "example.com"},
        {"allow": ["*"]},
        {"allow": ["exa*.com"]},
        {"allow": ["www.*.com"]},
        {"allow": ["https://example.com"]},
        {"allow": ["example.com/x"]},
        {"allow": [1]},
        {"deny": ["0x7f.1"]},
        {"allow_private": ["127.0.0.1"]},
        {"allow_private": "127.0.0.1:80"},
        {"allow_private": ["10.0.0.0/8"]},
        {"schemes": ["ftp"]},
        {"schemes": []},
        {"schemes": "https"},
        {"ports": [0]},
        {"ports": ["80"]},
        {"ports": 80},
        {"downgrade": 1},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"timeout": "10"},
        {"limit": 0},
        {"characters": 1},
        {"redirects": -1},
        {"resolver": "8.8.8.8"},
        {"user_agent": "a\r\nX: y"},
    ],
    ids=str,
)
def test_words_that_mean_nothing_are_refused_when_the_tool_is_made(said: dict[str, Any]) -> None:
    with pytest.raises(hf.UsageError):
        web(**said)
