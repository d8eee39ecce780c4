"""The language check, and texts without a result."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from validation.issues import Issue
from validation.options import MissingPart, language
from validation.options.language import MAX_CHARS, NAMES, LanguageCheck, extract_prose

SENTENCES = {
    "ar": "يجب عليك أن تشرح تجربتك السابقة بوضوح وأن تطرح أسئلة جيدة في المقابلة.",
    "bg": "По време на интервюто трябва ясно да обясните опита си и да зададете въпроси.",
    "ca": "Durant l'entrevista has d'explicar bé la teva experiència i fer preguntes.",
    "cs": "Během pohovoru byste měli jasně vysvětlit své zkušenosti a položit otázky.",
    "da": "Under samtalen bør du forklare din erfaring tydeligt og stille nogle spørgsmål.",
    "de": "Im Gespräch sollten Sie Ihre Erfahrung klar schildern und eigene Fragen stellen.",
    "el": "Στη συνέντευξη πρέπει να εξηγήσετε την εμπειρία σας και να κάνετε ερωτήσεις.",
    "en": "During the interview you should explain your experience and ask some questions.",
    "es": "Durante la entrevista debe explicar su experiencia con claridad y hacer preguntas.",
    "et": "Vestluse ajal peaksite selgelt oma kogemusi kirjeldama ja küsimusi esitama.",
    "fa": "در مصاحبه باید تجربه خود را به روشنی توضیح دهید و سوال بپرسید.",
    "fi": "Haastattelussa kannattaa kertoa selkeästi kokemuksestaan ja esittää kysymyksiä.",
    "fr": "Pendant l'entretien, vous devriez expliquer votre expérience et poser des questions.",
    "he": "בראיון כדאי להסביר את הניסיון שלך בבירור ולשאול שאלות טובות.",
    "hi": "साक्षात्कार में आपको अपना अनुभव स्पष्ट रूप से बताना चाहिए और प्रश्न पूछने चाहिए।",
    "hr": "Tijekom razgovora trebali biste jasno objasniti svoje iskustvo i postaviti pitanja.",
    "hu": "Az interjú során világosan el kell mondania a tapasztalatait és kérdezni is érdemes.",
    "id": "Selama wawancara Anda harus menjelaskan pengalaman Anda dan mengajukan pertanyaan.",
    "it": "Durante il colloquio dovresti spiegare la tua esperienza e fare delle domande.",
    "ja": "面接では、これまでの経験をわかりやすく説明し、質問もしましょう。",
    "ko": "면접에서는 자신의 경험을 명확하게 설명하고 질문을 해야 합니다.",
    "lt": "Per pokalbį turėtumėte aiškiai papasakoti apie savo patirtį ir užduoti klausimų.",
    "nl": "Tijdens het gesprek moet je je ervaring duidelijk uitleggen en vragen stellen.",
    "no": "Under intervjuet bør du forklare erfaringen din tydelig og stille noen spørsmål.",
    "pl": "Podczas rozmowy należy jasno opisać swoje doświadczenie i zadać kilka pytań.",
    "pt": "Durante a entrevista você deve explicar a sua experiência e fazer perguntas.",
    "ro": "În timpul interviului ar trebui să vă explicați experiența și să puneți întrebări.",
    "ru": "На собеседовании нужно ясно рассказать о своём опыте и задать вопросы.",
    "sv": "Under intervjun bör du tydligt förklara din erfarenhet och ställa några frågor.",
    "th": "ในการสัมภาษณ์คุณควรอธิบายประสบการณ์ของคุณให้ชัดเจนและถามคำถาม",
    "tr": "Görüşme sırasında deneyiminizi açıkça anlatmalı ve soru sormalısınız.",
    "uk": "Під час співбесіди потрібно чітко розповісти про свій досвід і поставити запитання.",
    "vi": "Trong buổi phỏng vấn bạn nên giải thích rõ kinh nghiệm của mình và đặt câu hỏi.",
    "zh": "面试时，你应该清楚地说明自己的经验，并向面试官提出一些好的问题。",
}
GERMAN = Issue("language", "The answer is in German, and English was asked for.")
CODE = "def interview(questions):\n    return [question.answer for question in questions]\n"


@pytest.mark.parametrize("code", SENTENCES)
def test_sentence_in_each_language_is_detected(code: str) -> None:
    assert LanguageCheck(code).find_issues(SENTENCES[code]) == ()
    if code != "en":
        [issue] = LanguageCheck("en").find_issues(SENTENCES[code])
        assert issue.rule == "language"
        assert issue.message.endswith(", and English was asked for.")
    for other in ("de", "ja", "ru"):
        assert bool(LanguageCheck(other).find_issues(SENTENCES[code])) == (code != other)


def test_message_names_both_languages() -> None:
    assert LanguageCheck("en").find_issues(SENTENCES["de"]) == (GERMAN,)


@pytest.mark.parametrize(("expected", "written"), [("nb", "no"), ("nn", "no"), ("bs", "hr")])
def test_similar_languages_are_accepted(expected: str, written: str) -> None:
    assert LanguageCheck(expected).find_issues(SENTENCES[written]) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Ja, genau.",
        "Guten Tag, mein Name",
        "Straßenbahnfahrer.",
        "xyz qwe asd zxc vbn qwx zxq vbx kjh",
        "1234567890 " * 20,
        "```\n```python\n" + SENTENCES["de"] + "\n```",
        "```python\n" + CODE * 5 + "```",
        "~~~\n" + SENTENCES["de"] + "\n```\n~~~",
        "    \n```\n" + SENTENCES["de"],
        "`" + SENTENCES["de"] + "`",
        "https://example.com/" + "guten-tag-wie-geht-es-ihnen-heute-" * 5,
        SENTENCES["en"] + "\n```\n" + SENTENCES["de"] * 10 + "\n```\n",
        SENTENCES["en"] * 60 + SENTENCES["de"] * 60,
        "😀🎉" * 100,
        "\ud800" * 100,
    ],
)
def test_text_with_too_little_prose_has_no_issue(text: str) -> None:
    assert LanguageCheck("en").find_issues(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        SENTENCES["de"] + "\n```\n" + SENTENCES["en"] * 10 + "\n```\n",
        "```\n" + SENTENCES["en"] * 10 + "\n```\n" + SENTENCES["de"],
        "Nutzen Sie `" + SENTENCES["en"] + "` " + SENTENCES["de"],
        "```" * 10 + "\ncode\n" + "`" * 30 + "\n" + SENTENCES["de"],
        SENTENCES["de"].upper(),
        SENTENCES["de"] + " Feedback, Meeting, Team Lead.",
    ],
)
def test_code_and_links_are_ignored(text: str) -> None:
    assert LanguageCheck("en").find_issues(text) == (GERMAN,)


def test_codes_ignore_case() -> None:
    assert LanguageCheck("EN").find_issues(SENTENCES["de"]) == (GERMAN,)


@pytest.mark.parametrize("code", ["", "xx", "english", "en-US", "zxx", "pcm"])
def test_unknown_language_is_rejected(code: str) -> None:
    with pytest.raises(ValueError, match=r"use one of \d+ ISO 639-1 codes, such as en, de, fr"):
        LanguageCheck(code)


def test_model_supports_all_languages() -> None:
    model = language._get_model()
    assert set(model.labels) == {*NAMES, "zxx"}


@pytest.mark.parametrize("text", ["a", "`", "`\n", "```\n", "a b ", "\u0300\u0316", "http://", "é"])
def test_only_the_beginning_is_read(text: str) -> None:
    check, long_text = LanguageCheck("en"), text * (1_000_000 // len(text))
    assert len(extract_prose(long_text)) <= 2 * MAX_CHARS
    start = time.thread_time()
    check.find_issues(long_text)
    assert time.thread_time() - start < 1


@pytest.mark.long
def test_threads_share_one_model() -> None:
    language._load_model.cache_clear()
    results: list[tuple[object, tuple[Issue, ...]]] = []

    def run() -> None:
        check = LanguageCheck("en")
        results.extend(
            (language._get_model(), check.find_issues(SENTENCES["de"])) for _ in range(50)
        )

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert language._load_model.cache_info().misses == 1
    assert len({id(model) for model, _ in results}) == 1
    assert [issues for _, issues in results] == [(GERMAN,)] * 200


def test_missing_package_raises_missing_part(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "py3langid", None)
        with pytest.raises(MissingPart, match=r"`pip install py3langid` adds it"):
            LanguageCheck("en")
    assert LanguageCheck("en").find_issues(SENTENCES["en"]) == ()


def test_model_is_loaded_on_first_use() -> None:
    program = """
import sys
import validation.options.blocked, validation.options.pii, validation.options.schema
from validation.options.language import LanguageCheck
lazy = {"jsonschema_rs", "py3langid", "numpy"}
assert not lazy & set(sys.modules), lazy & set(sys.modules)
import logging
logging.basicConfig(level=0)
LanguageCheck("de").find_issues("This is a sentence in English, and quite a long one.")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
