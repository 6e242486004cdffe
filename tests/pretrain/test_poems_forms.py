import pytest

from pretrain.poems.forms import FORMS, form_of, is_of_form, lines_of, with_marks
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

DENG = "白日依山盡，黃河入海流。欲窮千里目，更上一層樓。"
BAIDI = "朝辭白帝彩雲間，千里江陵一日還。兩岸猿聲啼不住，輕舟已過萬重山。"
SHAN = (
    "空山新雨後，天氣晚來秋。明月松間照，清泉石上流。"
    "竹喧歸浣女，蓮動下漁舟。隨意春芳歇，王孫自可留。"
)
LOU = (
    "昔人已乘黃鶴去，此地空餘黃鶴樓。黃鶴一去不復返，白雲千載空悠悠。"
    "晴川歷歷漢陽樹，芳草萋萋鸚鵡洲。日暮鄉關何處是，煙波江上使人愁。"
)
POEMS = {"五絕": DENG, "七絕": BAIDI, "五律": SHAN, "七律": LOU}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.token)
def test_the_four_forms_are_recognised(form):
    text = POEMS[form.name]
    lines = lines_of(text)
    assert form_of(lines) is form
    assert sum(map(len, lines)) == form.characters
    assert with_marks(lines) == text
    assert [other.name for other in FORMS if is_of_form(text, other)] == [form.name]


@pytest.mark.parametrize(
    "text",
    [
        DENG[:-6],  # three lines
        DENG + DENG[:12],  # six lines
        DENG.replace("入海", "入"),  # a short line
        DENG.replace("海", "□"),  # a lost character
        DENG.replace("海", "a"),
        "",
    ],
)
def test_other_texts_have_no_form(text):
    assert form_of(lines_of(text)) is None
    assert not any(is_of_form(text, form) for form in FORMS)


@pytest.mark.parametrize(
    "text", [DENG[:-1], DENG.replace("，", "。"), DENG.replace("。", "", 1), "。" + DENG]
)
def test_a_text_with_wrong_marks_is_not_of_its_form(text):
    assert not is_of_form(text, FORMS[0])


def test_lines_are_found_with_any_separator():
    assert lines_of("白日依山盡？黃河入海流！\n欲窮千里目；更上一層樓：") == lines_of(DENG)
    assert lines_of("\uf9dd") == ["利"]  # compatibility ideographs are normalized


def test_a_form_is_one_token_before_a_poem():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "qilv", "春", "，"]
    tokenizer = RoFormerTokenizer({x: i for i, x in enumerate(tokens)}, "char")
    assert tokenizer.tokenize("qilv春，春") == ["qilv", "春", "，", "春"]
