"""A warning names `corpus.segmentation` where whole phrases would be words, and nowhere else."""

import logging

import pytest
from corpus.preparing import Prepare

CHINESE = "机器学习是人工智能的一个分支。它使计算机系统能够从数据中自动学习,并改进性能"
SEGMENTED = "机器 学习 是 人工 智能 的 一个 分支 。 它 使 计算机 系统 能够 从 数据 中 自动 学习"
JAPANESE = "機械学習は人工知能における研究課題の一つで、人間の学習能力と同様の機能をコンピュータで実現する"
THAI = "การเรียนรู้ของเครื่องเป็นสาขาหนึ่งของปัญญาประดิษฐ์ ที่พัฒนามาจากการศึกษาการรู้จำแบบ"
LAO = "ການຮຽນຮູ້ຂອງເຄື່ອງຈັກແມ່ນສາຂາໜຶ່ງຂອງປັນຍາປະດິດ"
KHMER = "ការរៀនម៉ាស៊ីនគឺជាផ្នែកមួយនៃបញ្ញាសិប្បនិម្មិត"
BURMESE = "စက်သင်ယူမှုသည်ဉာဏ်ရည်တု၏ဌာနခွဲတစ်ခုဖြစ်သည်"
KOREAN = "기계 학습은 인공지능의 한 분야로 컴퓨터가 학습할 수 있도록 하는 알고리즘과 기술을 개발하는 분야를 말한다"
ENGLISH = "machine learning is a field of study in artificial intelligence, and of statistical algorithms"


def warned(run: Prepare, caplog: pytest.LogCaptureFixture, texts: list[str], **settings: str) -> bool:
    corpus = run(train=[(f"{text} {i}", ["all"]) for i, text in enumerate(texts)], test_share=0, **settings)
    said = corpus.manifest["summary"]["warnings"]
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == len(logged) and all("corpus.segmentation" in one for one in [*said, *logged])
    assert ("corpus.segmentation" in (corpus.directory / "report" / "corpus.html").read_text()) == bool(said)
    return bool(said)


@pytest.mark.parametrize("text", [CHINESE, JAPANESE, THAI, LAO, KHMER, BURMESE])
def test_phrases_are_warned_of(run: Prepare, caplog: pytest.LogCaptureFixture, text: str) -> None:
    assert warned(run, caplog, [text] * 20)
    caplog.clear()
    assert not warned(run, caplog, [text] * 20, segmentation="characters", directory="right")


@pytest.mark.parametrize("text", [SEGMENTED, KOREAN, ENGLISH, "Ελληνικά, русский язык, العربية हिन्दी"])
def test_words_between_blanks_are_not(run: Prepare, caplog: pytest.LogCaptureFixture, text: str) -> None:
    assert not warned(run, caplog, [text] * 20)


def test_the_share_decides(run: Prepare, caplog: pytest.LogCaptureFixture) -> None:
    assert not warned(run, caplog, [*[ENGLISH] * 99, CHINESE])
    assert warned(run, caplog, [*[ENGLISH] * 80, *[CHINESE] * 20], directory="mixed")
