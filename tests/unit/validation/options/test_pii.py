"""Redaction of real formats and public test numbers, and lookalikes that must stay."""

from __future__ import annotations

import ast
import sysconfig
import time
from pathlib import Path

import pytest

from validation.issues import Removal
from validation.options.payment import has_iban_checksum, is_card_number
from validation.options.pii import KINDS, PiiRedactor

# The networks' and payment providers' public test numbers.
CARDS = [
    "4111111111111111",
    "4111 1111 1111 1111",
    "4111-1111-1111-1111",
    "4012888888881881",
    "4222222222222",
    "4242 4242 4242 4242",
    "4000 0566 5566 5556",
    "4000\u00a00000\u00a00000\u00a00002",
    "5555555555554444",
    "5105-1051-0510-5100",
    "5200 8282 8282 8210",
    "2223003122003222",
    "2223 0000 4841 0010",
    "2720 9900 0000 0015",
    "378282246310005",
    "3782 822463 10005",
    "3714 496353 98431",
    "6011111111111117",
    "6011 0009 9013 9424",
    "6445 6445 6445 6445",
    "30569309025904",
    "3056 930902 5904",
    "3852-0000-0232-37",
    "3622 7206 2716 67",
    "3530111333300000",
    "3566 0020 2036 0505",
    "6200 0000 0000 0005",
    "6759 6498 2643 8453",
    "6304 0000 0000 0000",
    "2200 0000 0000 0053",
    "6062 8288 8866 6688",
    "5019 7170 1010 3742",
    "9792 0000 0000 0003",
    "4000 0000 0000 0000 006",
]
NO_CARDS = [
    "4111111111111112",
    "4111 1111 1111 1121",
    "4242 4242 4242 4224",
    "411111111111111",
    "411111111111",
    "41111111111111111111",
    "1234 5678 9012 3456",
    "0000 0000 0000 0000",
    "1111 1111 1111 1111",
    "1700000000000000000",
    "1700000000007",
    "x4111111111111111",
    "4111111111111111b",
    "0x4111111111111111",
    "0.4111111111111111",
    "4.111111111111111",
    "4111111111111111.5",
    "$4111111111111111",
    "€4111111111111111",
    "id_4111111111111111",
    "req-4111111111111111",
    "4111111111111111-ab",
    "/status/4111111111111111",
    "9781861972712 978-1-86197-271-2",
    "5711 5712 5713 5714 5715",
    "5711 5712 5713 5710",
    "4003 4004 4005 4006",
    "12 4003 4004 4005 4006",
    "a5a5 4111 1111 1111 1111",
    "4111 1111 1111 1111 B6B6",
    "1 2 3 4 4111 1111 1111 1111",
    "4522 4553 4584 4615 4646 4677 4708 4740 4771",
    "2e54 4820 5858 4420 3120 2241",
    "3843061514398340071",
    "4111 1111\n1111 1111",
    "4111, 1111, 1111, 1111",
    "18446744073709551615",
]

IBANS = (
    # SWIFT's registry gives one for each country.
    "AD1200012030200359100100 AE070331234567890123456 AL47212110090000000235698741 "
    "AT611904300234573201 AZ21NABZ00000000137010001944 BA391290079401028494 BE68539007547034 "
    "BG80BNBG96611020345678 BH67BMAG00001299123456 BR1800360305000010009795493C1 "
    "BY13NBRB3600900000002Z00AB00 CH9300762011623852957 CR05015202001026284066 "
    "CY17002001280000001200527600 CZ6508000000192000145399 DE89370400440532013000 "
    "DK5000400440116243 DO28BAGR00000001212453611324 EE382200221020145685 "
    "EG380019000500000000263180002 ES9121000418450200051332 FI2112345600000785 FO6264600001631634 "
    "FR1420041010050500013M02606 GB29NWBK60161331926819 GE29NB0000000101904917 "
    "GI75NWBK000000007099453 GL8964710001000206 GR1601101250000000012300695 "
    "GT82TRAJ01020000001210029690 HR1210010051863000160 HU42117730161111101800000000 "
    "IE29AIBK93115212345678 IL620108000000099999999 IQ98NBIQ850123456789012 "
    "IS140159260076545510730339 IT60X0542811101000000123456 JO94CBJO0010000000000131000302 "
    "KW81CBKU0000000000001234560101 KZ86125KZT5004100100 LB62099900000001001901229114 "
    "LC55HEMM000100010012001200023015 LI21088100002324013AA LT121000011101001000 "
    "LU280019400644750000 LV80BANK0000435195001 MC5811222000010123456789030 "
    "MD24AG000225100013104168 ME25505000012345678951 MK07250120000058984 "
    "MR1300020001010000123456753 MT84MALT011000012345MTLCAST001S MU17BOMM0101101030300200000MUR "
    "NL91ABNA0417164300 NO9386011117947 PK36SCBL0000001123456702 PL61109010140000071219812874 "
    "PS92PALS000000000400123456702 PT50000201231234567890154 QA58DOHB00001234567890ABCDEFG "
    "RO49AAAA1B31007593840000 RS35260005601001611379 SA0380000000608010167519 "
    "SC18SSCB11010000000000001497USD SE4550000000058398257466 SI56263300012039086 "
    "SK3112000000198742637541 SM86U0322509800000000270100 ST23000100010051845310146 "
    "SV62CENR00000000000000700025 TL380080012345678910157 TN5910006035183598478831 "
    "TR330006100519786457841326 UA213223130000026007233566001 VA59001123000012345678 "
    "VG96VPVG0000012345678901 XK051212012345678906"
).split()
PRINTED_IBANS = [
    "DE89 3704 0044 0532 0130 00",
    "GB29 NWBK 6016 1331 9268 19",
    "GB29 NWBK 601613 31926819",
    "FR14 2004 1010 0505 0001 3M02 606",
    "NL91-ABNA-0417-1643-00",
    "CH93\u00a00076\u00a02011\u00a06238\u00a05295\u00a07",
    "de89370400440532013000",
]
NO_IBANS = [
    "DE89370400440532013001",
    "DE88370400440532013000",
    "DE8937040044053201300",
    "DE893704004405320130000",
    "DE89 3704 0044 0532 0130 01",
    "GB29 NWBK 6016 1331 9268 18",
    "GB29NWBK60161331926818",
    "XX89370400440532013000",
    "US89370400440532013000",
    "ZZ68539007547034",
    "BE68539007547035",
    "BE6853900754703",
    "NO9386011117948",
    "NL91ABNA0417164301",
    "FR1420041010050500013M02607",
    "XDE89370400440532013000",
    "DE89370400440532013000A",
    "de89 3704 0044 0532 0130 00",
    "DE89",
    "DE89 3704",
    "DE89.3704.0044.0532.0130.00",
    "DE89  3704  0044  0532  0130  00",
    "D E89370400440532013000",
    "SHA256 AB12CD34EF56AB12CD34EF56",
    "AT&T 61 1904 3002 3457 3201",
    "GB18030 and UTF8 and ISO8859",
    "IT60",
    "FI21 of 12 and SE45 of 50",
    "BA12 34CD 56EF 78AB 9012",
    "LU28 0019 4006 4475 0001",
]

EMAILS = [
    "bob@example.com",
    "Bob.Smith@Example.COM",
    "o'brien@example.ie",
    "first.last+tag@sub.domain.example.co.uk",
    "user_name@example.org",
    "user-name@my-company.de",
    "u@example.io",
    "1234567890@example.com",
    "a.b.c.d@example.museum",
    "root%local@example.net",
    "jörg@müller.de",
    "josé.garcía@correo.es",
    "почта@пример.рф",
    "παράδειγμα@παράδειγμα.ελ",
    "info@xn--mller-kva.de",
    "x@example.xn--p1ai",
    "hello@example.technology",
    "sales@example.com.au",
    "contact@exa-mple.fr",
    "n.n@uni-example.ac.at",
    "bob@mail-1.example.jp",
    "kim@example.co.kr",
    "chen@example.com.cn",
    "joao@example.com.br",
    "priya@example.in",
    "jan@example.pl",
    "e.t.a@example.travel",
    "_admin@example.com",
]
NO_EMAILS = [
    "bob@localhost",
    "@alice",
    "@app.route",
    "bob@",
    "@example.com",
    "bob at example.com",
    "lodash@4.17.21",
    "react@18.2",
    "python@3.11.2",
    "logo@2x.png",
    "icon@3x.webp",
    "getty@tty1.service",
    "user@1000.service",
    "openvpn@client.socket",
    "git@github.com:owner/name.git",
    "deploy@host.example.com:/srv/www",
    "scp file bob@host.example.com:~",
    "ssh://git@github.com/owner/name",
    "https://user:secret@host.example.com/x",
    "postgres://app:pw@db.example.com:5432/app",
    "chacha20-poly1305@openssh.com",
    "hmac-sha2-256-etm@openssh.com",
    "W@x.reshape(-1)",
    "a @ b.mean",
    "HEAD@{1}",
    "image@sha256:0123abcd",
    "foo-bar@baz.py",
    "x@y.z",
    "bob@example.com2",
    "bob@-example.com.",
    "a" * 65 + "@example.com",
]

PHONES = [
    # with the country code
    "+49 30 123456",
    "+4930123456",
    "+49 (0)30 123456-78",
    "+49 171 2345678",
    "+49/171/2345678",
    "+44 20 7946 0958",
    "+44 (0) 20 7946 0958",
    "+447911123456",
    "+1 415 555 2671",
    "+1 (415) 555-2671",
    "+1-415-555-2671",
    "+1.415.555.2671",
    "+14155552671",
    "+33 1 23 45 67 89",
    "+33 (0)6 12 34 56 78",
    "+34 912 345 678",
    "+39 06 1234 5678",
    "+31 20 123 4567",
    "+32 475 12 34 56",
    "+41 44 668 18 00",
    "+43 664 1234567",
    "+46 70 123 45 67",
    "+47 22 12 34 56",
    "+45 32 12 34 56",
    "+48 601 234 567",
    "+351 912 345 678",
    "+353 87 123 4567",
    "+358 40 123 4567",
    "+380 44 123 45 67",
    "+420 601 123 456",
    "+7 495 123-45-67",
    "+81 3-1234-5678",
    "+82 2-123-4567",
    "+86 138 1234 5678",
    "+852 2123 4567",
    "+91 98765 43210",
    "+61 2 9876 5432",
    "+64 21 123 4567",
    "+55 11 91234-5678",
    "+52 55 1234 5678",
    "+27 82 123 4567",
    "+234 803 123 4567",
    "+971 50 123 4567",
    "+972 50-234-5678",
    "+90 532 123 45 67",
    "(+49) 30 123456",
    "+49\u00a030\u00a0123456",
    "+49 30 1234\u201356",
    "0049 30 1234567",
    "0044 20 7946 0958",
    "0041 44 668 18 00",
    # as written in the country
    "(415) 555-2671",
    "(415)555-2671",
    "415-555-2671",
    "415.555.2671",
    "1-800-555-0199",
    "1 (800) 555-0199",
    "030 12345678",
    "030/12345678",
    "089 / 1234567",
    "0171-2345678",
    "(030) 123 45 67",
    "020 7946 0958",
    "07911 123456",
    "0161 496 0000",
    "01632 960001",
    "01 23 45 67 89",
    "06.12.34.56.78",
    "06-12345678",
    "044 668 18 00",
    "0664 1234567",
    "08-123 456 78",
    "0412 345 678",
    "(02) 9876 5432",
    "03-1234-5678",
    "090-1234-5678",
    "010-12345678",
    "138-1234-5678",
    "098765 43210",
    "(11) 91234-5678",
    "8 (495) 123-45-67",
    "8-800-555-35-35",
    "0532 123 45 67",
    "0 (532) 123 45 67",
]
LABELLED_PHONES = [
    "Tel.: 912 345 678",
    "Tel: 5551234567",
    "tel.22 12 34 56",
    "Phone: 601 234 567",
    "phone=4155552671",
    "Phone number: 12 34 56 78",
    "Téléphone : 123 456 789",
    "Teléfono: 912345678",
    "Fax. 30 1234567",
    "Handy: 171 2345678",
    "WhatsApp: 612 34 56 78",
    "电话：13812345678",
    "Телефон: 123-45-67",
]
NO_PHONES = [
    # dates and times
    "2024-01-15",
    "2024-01-15 10:30:22",
    "01.02.2024 12:30",
    "01-02-2024 10 30",
    "01/02/2024",
    "20240115-103022",
    "2024-01-01T00:00:00+01:00",
    "1999-2000, 2001-2002",
    "(12) 2024-2025",
    "08:00-12:00",
    # versions, addresses, numbers of things
    "1.2.3-4.5.6",
    "v10.0.19045.3996",
    "192.168.100.100",
    "010.001.002.003",
    "10.0.0.0/8",
    "00:1B:44:11:3A:B7",
    "01-23-45-67-89-ab",
    "550e8400-e29b-41d4-a716-446655440000",
    "ISBN 978-3-16-148410-0",
    "ISBN 0-306-40615-2",
    "ISBN-10: 0-19-853453-1",
    "ISSN 0317-8471",
    "10.1000/182-1234567",
    "0000-0002-1825-0097",
    "078-05-1120",
    "02139-4307",
    "093/815/08152",
    "order 5551234567",
    "order no. 01712345678",
    "#415-555-2671",
    "ticket/415-555-2671",
    # money and mathematics
    "$415-555-2671",
    "€0800 123 4567",
    "1.234.567,89",
    "1 234 567 890",
    "+12345",
    "+100000000",
    "+1234567890",
    "+1 015 555 2671",
    "+1 415 155 2671",
    "+49 30 123456€",
    "+49 30 123456abc",
    "415-555-2671x",
    "415-555-2671@host",
    "+2147483647",
    "+3.14159265358",
    "+49.301234567",
    "x+49301234567",
    "3+4915112345678",
    "1e+4930123456",
    "+0530",
    "+999 123 456 789",
    "256 512 1024",
    "0123456789",
    "020000000",
    "01 02 03 04 05",
    "00 01 02 03 04 05",
    "041 117 132",
    "0102 0304 0506",
    "0058 0006 31 32 33 34",
    "00000010: 0102 0304 05",
    "0644 0755 0777 0600",
    "123-456-7890",
    "415-155-2671",
    "555-2671",
    "0800-1200 1300-1700",
    "0900 1700 1800",
]


def _join_secret(*parts: str) -> str:
    """Join the parts of a secret, so that secret scanners find none in this file."""
    return "".join(parts)


BODY = "aB3dE5gH7jK9mN1pQ2sT4vW6xY8z"
PEM_BODY = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7" + BODY[:12]] * 4)
KEYS = [
    _join_secret("sk", "-", BODY, BODY[:20]),
    _join_secret("sk", "-proj-", BODY, "-", BODY, "_", BODY),
    _join_secret("sk", "-svcacct-", BODY, BODY),
    _join_secret("sk", "-ant-api03-", BODY, "_", BODY, "-AA"),
    _join_secret("sk", "-or-v1-", "0123456789abcdef" * 4),
    _join_secret("sk", "-", "0123456789abcdef" * 2),
    _join_secret("sk", "_live_", BODY),
    _join_secret("rk", "_test_", BODY),
    _join_secret("whsec", "_", BODY, "+/"),
    _join_secret("gh", "p_", BODY, BODY[:8]),
    _join_secret("gh", "o_", BODY, BODY[:8]),
    _join_secret("gh", "s_", BODY, BODY[:8]),
    _join_secret("github", "_pat_", BODY, "_", BODY),
    _join_secret("glpat", "-", BODY[:20]),
    _join_secret("AK", "IA", "IOSFODNN7ABCDEFG"),
    _join_secret("AS", "IA", "IOSFODNN7ABCDEFG"),
    _join_secret("AI", "za", BODY, BODY[:7]),
    _join_secret("GOC", "SPX-", BODY),
    _join_secret("ya", "29.", BODY, "-", BODY),
    _join_secret("xo", "xb-", "123456789012-1234567890123-", BODY[:24]),
    _join_secret("xo", "xp-", "123456789012-", BODY),
    _join_secret("xa", "pp-1-A012-", BODY),
    _join_secret("rp", "a_", BODY.upper(), "abc123"),
    _join_secret("hf", "_", BODY, BODY[:6]),
    _join_secret("npm", "_", BODY, BODY[:8]),
    _join_secret("pypi", "-AgE", "IcHlwaS5vcmc", BODY, BODY),
    _join_secret("SG", ".", BODY[:22], ".", BODY, BODY[:15]),
    _join_secret("dop", "_v1_", "0123456789abcdef" * 4),
    _join_secret("hvs", ".", BODY),
    _join_secret("gsk", "_", BODY, BODY),
    _join_secret("shp", "at_", "0123456789abcdef" * 2),
    _join_secret("123456789", ":AA", BODY, BODY[:8]),
    _join_secret("ey", "JhbGciOiJIUzI1NiJ9", ".ey", "JzdWIiOiIxMjM0In0", ".", BODY),
    _join_secret(
        "-----BEGIN ", "PRIVATE KEY-----\n", PEM_BODY, "\nabcd==\n-----END ", "PRIVATE KEY-----"
    ),
    _join_secret(
        "-----BEGIN RSA ", "PRIVATE KEY-----\n", PEM_BODY, "\n-----END RSA ", "PRIVATE KEY-----"
    ),
    _join_secret("-----BEGIN OPENSSH ", "PRIVATE KEY-----\r\n", PEM_BODY.replace("\n", "\r\n")),
    _join_secret("-----BEGIN EC ", "PRIVATE KEY-----\\n", PEM_BODY.replace("\n", "\\n")),
    _join_secret(
        "-----BEGIN RSA ",
        "PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123\n\n",
        PEM_BODY,
        "\n-----END RSA ",
        "PRIVATE KEY-----",
    ),
]
NO_KEYS = [
    "sk-learn",
    "sk-estimator-doc-link-with-many-words",
    "sk-toggleable__content-arrow-and-more",
    "sk-your-api-key-goes-right-here-123",
    _join_secret("sk", "-", "x" * 32),
    "sk-1234",
    _join_secret("ta", "sk", "-1234567890abcdefghijklmnop"),
    _join_secret("di", "sk", "-0123456789abcdef0123456789"),
    "risk_live_0123456789abcdef0123",
    "ghp_short",
    "ghp_" + "x" * 36,
    "gh-pages-0123456789abcdef0123456789abcdef",
    "github_pat_",
    "AKIA",
    _join_secret("AK", "IA", "X" * 16),
    "AKIASHORT",
    "MAKIA" + "IOSFODNN7ABCDEFG",
    "AIzaShort",
    "xoxb-",
    "xoxb-xxxxxxxxxxxx",
    "hf_transfer_enabled_by_default_everywhere",
    "hf_hub_download",
    "npm_config_registry",
    "rpa_tools",
    "eyJhbGciOiJIUzI1NiJ9",
    "eyJ.eyJ.abc",
    "0123456789abcdef0123456789abcdef01234567",
    "d41d8cd98f00b204e9800998ecf8427e",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "550e8400-e29b-41d4-a716-446655440000",
    "-----BEGIN CERTIFICATE-----\n" + PEM_BODY + "\n-----END CERTIFICATE-----",
    _join_secret("-----BEGIN ", "PUBLIC KEY-----\n", PEM_BODY),
    _join_secret("-----BEGIN ", "PRIVATE KEY-----\n...\n-----END ", "PRIVATE KEY-----"),
    _join_secret("A file starts with -----BEGIN ", "PRIVATE KEY----- and then has the key itself."),
]

SSNS = [
    *("001-01-0001", "123-45-6789", "078-05-1120", "219-09-9999", "899-99-9999", "665-12-3456"),
    *("667-01-0002", "212-55-1234", "301-22-4567", "402-33-5678", "503-44-6789", "604-55-7890"),
    *("705-66-8901", "111-11-1111", "222-22-2222", "333-33-3333", "444-44-4444", "555-55-5555"),
    *("777-77-7777", "888-88-8888", "100-10-1000", "545-12-9876", "418-27-3645", "261-53-4897"),
    *("530-88-4123", "766-21-9034"),
]
NO_SSNS = [
    *("000-12-3456", "666-12-3456", "900-12-3456", "999-99-9999", "123-00-4567", "123-45-0000"),
    *("1123-45-6789", "123-45-67890", "123-456-789", "12-345-6789", "123-4-56789", "123.45.6789"),
    *("123 45 6789", "123456789", "A123-45-6789", "123-45-6789B", "no_123-45-6789", "+123-45-6789"),
    *("1-123-45-6789", "123-45-6789-1", "0.123-45-6789", "$123-45-6789", "#123-45-6789"),
    *("2024-03-15", "978-3-16-148410-0", "555-555-0100"),
]


def full_width(text: str) -> str:
    """Return ASCII text in its full-width form; spaces stay."""
    return "".join(chr(ord(char) + 0xFEE0) if char > " " else char for char in text)


# Forms that hide a number or an address from a plain search, and stand for the same thing.
FOLDED = [
    ("card", full_width("4111 1111 1111 1111")),
    ("card", "\u0664" + 15 * "\u0661"),
    ("card", "4111\u200b1111\u200b1111\u200b1111"),
    ("card", "41\u00ad11 1111 1111 1111"),
    ("card", "4111.1111.1111.1111"),
    ("card", "4111/1111/1111/1111"),
    ("card", "4111_1111_1111_1111"),
    ("card", "4111,1111,1111,1111"),
    ("card", "3782.822463.10005"),
    ("card", "4111\\u00201111\\u00201111\\u00201111"),
    ("card", "\U0001d7d2\U0001d7cf11 1111 1111 1111"),
    ("iban", "DE89\u200d 3704 0044 0532 0130 00"),
    ("iban", full_width("DE89370400440532013000")),
    ("email", full_width("jo@example.com")),
    ("email", "jo\ufe6bexample.com"),
    ("email", "jo\u200b@exam\u00adple.com"),
    ("email", "jo\\u0040example.com"),
    ("email", "\\u006ao@example\\u002ecom"),
    ("email", '"jo doe"@example.com'),
    ("email", '\\"jo doe\\"@example.com'),
    ("phone", "+\u096f\u0967 98765 43210"),
    ("phone", "+\u0664\u0669 \u0663\u0660 \u0661\u0662\u0663\u0664\u0665\u0666"),
    ("phone", "+49\u2060 30\u2060 123456"),
    ("ssn", "\u0967\u0968\u0969-45-6789"),
    ("ssn", "123-45\u200b-6789"),
    ("key", "sk-\u200babcdefghij0123456789ABCD"),
]
# Texts that the search in folded text must not redact.
KEPT = [
    "Order 2023.1111.4411.0001 of 12.03.2024 at 10:45",
    "version 4.111.111.111, build 4111.2222.3333",
    "10.20.30.40 and 2001:db8::1",
    "4111.1111/1111.1111",
    "4111.1111.1111.1111.5",
    "\u0661\u0662 \u0645\u0627\u0631\u0633 \u0662\u0660\u0662\u0664",
    "\uff12\uff10\uff12\uff14\u5e74\uff13\u6708",
    "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "C:\\\\users\\\\u0040example.com",
    "\u2116\u00a042, 1\u00aa e 2\u00ba",
    "the _id@_ of a row and a_b@c",
    'she said "hello"@the door',
    '"a"@b',
    "\u200d\u200c\u00ad\ufeff",
    "snake_case_@decorator.py",
]

GOOD = {
    "card": CARDS,
    "iban": IBANS + PRINTED_IBANS,
    "email": EMAILS,
    "phone": PHONES,
    "key": KEYS,
    "ssn": SSNS,
}
BAD = {
    "card": NO_CARDS,
    "iban": NO_IBANS,
    "email": NO_EMAILS,
    "phone": NO_PHONES,
    "key": NO_KEYS,
    "ssn": NO_SSNS,
}
AROUND = [
    "{}",
    "Here it is: {}.",
    "({})",
    "“{}”",
    "<{}>",
    "My own, {}, is new",
    "我的{}。",
    "a\n{}\nb",
]


def test_every_kind_has_enough_examples() -> None:
    assert GOOD.keys() == BAD.keys() == set(KINDS)
    assert min(map(len, [*GOOD.values(), *BAD.values()])) >= 25


@pytest.mark.parametrize("kind", GOOD)
def test_personal_data_is_redacted_in_any_context(kind: str, subtests: pytest.Subtests) -> None:
    for text in GOOD[kind]:
        with subtests.test(text):
            for redactor in (PiiRedactor(), PiiRedactor([kind])):
                for around in AROUND:
                    passage = around.format(text)
                    start = passage.index(text)
                    redacted, removals = redactor.redact(passage)
                    assert redacted == around.format(f"[{kind}]")
                    removal = Removal(f"pii_{kind}", start, start + len(text), f"[{kind}]")
                    assert removals == (removal,)


@pytest.mark.parametrize(("kind", "text"), FOLDED)
def test_personal_data_is_redacted_however_it_is_written(kind: str, text: str) -> None:
    for redactor in (PiiRedactor(), PiiRedactor([kind])):
        for around in ("{}", "Here it is: {}.", "({})", "a\n{}\nb", "\u00e9\u200b {} \u00e9"):
            redacted, (removal,) = redactor.redact(around.format(text))
            assert redacted == around.format(f"[{kind}]")
            assert around.format(text)[removal.start : removal.end] == text


@pytest.mark.parametrize(
    "text", ["_jo@example.com_", "__jo.doe@example.com__", "_jo@example.com_."]
)
def test_emphasis_around_an_address_is_kept(text: str) -> None:
    marks = "__" if text.startswith("__") else "_"
    redacted, _ = PiiRedactor().redact(f"Write to {text} now")
    assert redacted == f"Write to {marks}[email]{marks}{'.' if text.endswith('.') else ''} now"


@pytest.mark.parametrize("text", KEPT)
def test_texts_that_only_look_like_folded_data_are_kept(text: str) -> None:
    assert PiiRedactor().redact(text) == (text, ())


@pytest.mark.parametrize("kind", BAD)
def test_lookalikes_are_not_redacted(kind: str, subtests: pytest.Subtests) -> None:
    for text in BAD[kind]:
        with subtests.test(text):
            for around in ("{}", "Here it is: {}.", "({})", "a\n{}\nb"):
                passage = around.format(text)
                assert PiiRedactor([kind]).redact(passage) == (passage, ())


@pytest.mark.parametrize("text", LABELLED_PHONES)
def test_labelled_digits_are_a_telephone_number(text: str) -> None:
    first = next(at for at, char in enumerate(text) if char.isdigit())
    assert PiiRedactor().redact(text)[0] == text[:first] + "[phone]"
    assert PiiRedactor().redact("Item: " + text[first:])[0] == "Item: " + text[first:]


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("4111 1111 1111 1111 12/27", "[card] 12/27"),
        ("card 4111 1111 1111 1111 2027", "card [card] 2027"),
        ("2024 4111 1111 1111 1111", "2024 [card]"),
        ("Card 4111 1111 1111 1111 added", "Card [card] added"),
        ("I face 4111 1111 1111 1111 dead", "I face [card] dead"),
        ("4111 1111 1111 1111 5555 5555 5555 4444", "[card] [card]"),
        ("4111111111111111,378282246310005", "[card],[card]"),
        ("DE89 3704 0044 0532 0130 00 BIC COBADEFFXXX", "[iban] BIC COBADEFFXXX"),
        ("GB29 DE89 3704 0044 0532 0130 00", "GB29 [iban]"),
        ("Contact...bob@example.com...", "Contact...[email]..."),
        ("'bob@example.com'", "'[email]'"),
        ("mailto:bob@example.com?cc=eve@example.com", "mailto:[email]?cc=[email]"),
        ("bob@example.com: thanks", "[email]: thanks"),
        ("https://example.com/?mail=bob@example.com", "https://example.com/?mail=[email]"),
        ("您的邮箱bob@example.com是", "您的邮箱[email]是"),
        ("May 5 (415) 555-2671", "May 5 [phone]"),
        ("5 415-555-2671", "5 [phone]"),
        ("+1 415 555 2671 10 people", "[phone] 10 people"),
        ("030 1234567 / 0171 1234567", "[phone] / [phone]"),
        ("+49 30 123456+49 30 654321", "[phone][phone]"),
        ("tel:+14155552671", "tel:[phone]"),
        ("(030 12345678)", "([phone])"),
        ("x = '" + KEYS[9] + "'", "x = '[key]'"),
        ("Bearer " + KEYS[32] + ", then", "Bearer [key], then"),
        (KEYS[33] + "\n" + KEYS[34], "[key]\n[key]"),
        ("a" + "\ud800" + " bob@example.com \ud800", "a\ud800 [email] \ud800"),
        ("😀 bob@example.com 😀 4111111111111111", "😀 [email] 😀 [card]"),
    ],
)
def test_text_around_personal_data_is_kept(text: str, redacted: str) -> None:
    assert PiiRedactor().redact(text)[0] == redacted


def test_only_selected_kinds_are_redacted() -> None:
    text = f"bob@example.com 4111111111111111 {KEYS[9]}"
    assert PiiRedactor({"email"}).redact(text)[0] == f"[email] 4111111111111111 {KEYS[9]}"
    assert PiiRedactor({"card", "key"}).redact(text)[0] == "bob@example.com [card] [key]"
    assert PiiRedactor(()).redact(text) == (text, ())


def test_unknown_kind_is_rejected_with_the_allowed_kinds() -> None:
    with pytest.raises(
        ValueError, match=r"no kind 'passport', only card, iban, email, phone, key, ssn"
    ):
        PiiRedactor(["card", "passport"])


@pytest.mark.parametrize("iban", IBANS)
def test_iban_with_a_changed_digit_is_kept(iban: str) -> None:
    # 97 is a prime above 10 and 36: every single error changes the remainder (ISO 7064).
    assert has_iban_checksum(iban)
    for at in range(4, len(iban)):
        if iban[at].isdigit():
            assert not has_iban_checksum(iban[:at] + str((int(iban[at]) + 1) % 10) + iban[at + 1 :])


@pytest.mark.parametrize("card", [card for card in CARDS if card.isdigit()])
def test_card_with_a_changed_digit_is_kept(card: str) -> None:
    for at in range(4, len(card)):
        for step in range(1, 10):
            digit = str((int(card[at]) + step) % 10)
            assert not is_card_number(card[:at] + digit + card[at + 1 :])


def _docstrings() -> list[str]:
    return [
        ast.get_docstring(node) or ""
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[::4]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_standard_library_has_only_email_addresses() -> None:
    texts = _docstrings()
    assert sum(map(len, texts)) > 75_000
    removals = [
        (removal.rule, text[removal.start : removal.end])
        for text in texts
        for removal in PiiRedactor().redact(text)[1]
    ]
    assert removals
    assert {rule for rule, _ in removals} == {"pii_email"}
    ends = {address.rsplit(".", 1)[1] for _, address in removals}
    assert ends <= {"com", "org", "net", "de", "edu", "nl", "se", "uk"}, removals


HOSTILE = {
    "prose": "lorem ipsum dolor sit amet, consectetur. ",
    "letters": "a",
    "digits": "1",
    "numbers": "1 ",
    "ats": "a@",
    "dots": "a.",
    "domains": "a@a.",
    "addresses": "bob@ex.co ",
    "cards": "4111 1111 1111 1111 ",
    "almost cards": "4111 4111 4112 ",
    "tables": "4111 ",
    "ibans": "DE89370400440532013000 ",
    "iban heads": "GB11 ",
    "phones": "415-555-2671 ",
    "almost phones": "555-1234 x ",
    "pluses": "+12345678",
    "brackets": "((0",
    "zeros": "0 ",
    "keys": _join_secret("sk", "-", "a" * 29, " "),
    "key heads": "sk-",
    "tokens": "eyJaaaaaaaaaaa.",
    "pem heads": _join_secret("-----BEGIN ", "PRIVATE KEY-----\n"),
    "urls": "://a:",
    "umlauts": "é 12 ",
    "emoji": "😀 bob@ex.co ",
    "labels": "tel: 1 ",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
def test_time_is_linear_in_the_length(piece: str, scale: int) -> None:
    # The short form has a tenth of the characters and of the limit.
    size, limit_s = (1_000_000, 6.0) if scale > 1 else (100_000, 0.6)
    text = (piece * (size // len(piece) + 1))[:size]
    start = time.thread_time()
    PiiRedactor().redact(text)
    # Half a second on a machine that has nothing else to do; quadratic would be minutes.
    assert time.thread_time() - start < limit_s
