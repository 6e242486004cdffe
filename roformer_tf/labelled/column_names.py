"""Well-known names of text and label columns, English and Chinese."""

import re
import unicodedata

# The characters of names below in traditional Chinese.
_SIMPLIFIED = str.maketrans(
    "內評論標題語問饋對話價詳點聞復見發詢訴單戶輸據籤類別緒極傾種註級圖領稱結屬關負",
    "内评论标题语问馈对话价详点闻复见发询诉单户输据签类别绪极倾种注级图领称结属关负",
)


def folded(name: str) -> str:
    """A column's name, normalized for comparison.

    "Text A " and "text_a" are equal, and so are 情感（0/1） and 情感, 標籤 and 标签.
    """
    # What follows a bracket explains the name; a name of punctuation alone stays as it is.
    name = unicodedata.normalize("NFKC", name).casefold().translate(_SIMPLIFIED)
    name = re.sub(r"(?<=.)\s*[(\[【〔].*$", "", name.strip())
    return re.sub(r"[\W_]", "", name) or name


def _folded(names: str) -> tuple[str, ...]:
    return tuple(map(folded, names.split()))


def _groups(names: str) -> tuple[tuple[str, ...], ...]:
    return tuple(map(_folded, names.split(",")))


# Names of a column of texts, normalized by `folded`. Not comments: those of doccano are lists.
TEXTS = _folded("""
    text texts sentence content contents review reviews comment document body title
    query question message utterance post abstract feedback raw_text original_text
    review_text comment_text
    文本 内容 句子 评论 正文 标题 原文 语句 文章 留言 弹幕 点评 帖子 问题 提问 问句 反馈 摘要
    描述 短信 对话 语料 评论内容 评价内容 评论正文 评论文本 评论详情 评价详情 评价正文 点评内容
    用户评论 用户评价 商品评论 文本内容 文章内容 文章标题 新闻 新闻内容 新闻标题 新闻正文 微博
    微博内容 微博正文 微博文本 帖子内容 留言内容 弹幕内容 回复内容 回答内容 问题内容 问题描述
    反馈内容 意见内容 短信内容 消息内容 聊天内容 发言内容 咨询内容 投诉内容 工单内容 客户留言
    用户留言 用户反馈 用户输入 句子内容 文本数据 数据内容
""")
_PAIRS = _groups("""
    text_a text_b, text1 text2, sentence1 sentence2, sentence_a sentence_b, question1 question2,
    query1 query2, q1 q2, query title, query document, premise hypothesis, 前提 假设, 问题 相似问题,
    查询 标题, 文本1 文本2, 句子1 句子2, 问题1 问题2, 问句1 问句2, 文本a 文本b, 句子a 句子b,
    文本一 文本二, 句子一 句子二, 问题一 问题二
""")
# A text, and the name of a column with a list of texts.
CHOICES = _groups("text choices, content candidates, question choices, question options")
DOCUMENTS = _groups("query documents, query passages")
TRIPLES = _groups("a b c, text_a text_b text_c")
# Matching texts, which need no label; the last of three does not match the first.
# Groups of three come first: `columns._positives` returns the first group that is complete.
POSITIVES = _groups("""
    anchor positive negative, query positive negative, query pos neg, text similar different,
    anchor positive, query positive, query pos, query document, query doc, query passage,
    question answer, text similar, sentence passage, title document, text synonyms, text synonym,
    查询 文档, 问题 答案, 问题 回答, 标题 正文, 标题 内容, 文本 相似文本
""")
# Pairs where there is a label. A title and its text are none: the label may be that of the text.
PAIRS = _PAIRS + tuple(x for x in POSITIVES if len(x) == 2 and not {*x} <= {*TEXTS})
# A question, its context and the answers in it.
QUESTIONS = _groups("question context answers, question context answer, 问题 上下文 答案")
# Names of columns that are no second text.
REMARKS = _folded("keyword keywords author user url link 关键词 关键字 作者 用户 链接 备注")
# Names of a column in which an example may have several labels.
SEVERAL = _folded("labels tags 多标签 标签列表 标签集合")
LABELS = SEVERAL + _folded("""
    label tag class category target score rating sentiment polarity emotion stars intent topic
    relevance similarity sim 相关性 相关度 匹配 是否匹配
    标签 类别 分类 分数 评分 得分 情感 情绪 极性 倾向 类型 种类 类目 类标 标注 打分 星级 评级
    等级 意图 主题 领域 情感倾向 情感极性 情感标签 情感分类 情感类别 情感类型 情感得分 情感分数
    情感值 情感标注 情绪标签 情绪类别 标签名称 标注结果 标注标签 人工标注 分类标签 分类结果
    类别标签 类别名称 所属类别 所属分类 文本类别 文本分类 新闻类别 新闻分类 文章分类 问题类型
    问题分类 意图标签 意图类别 用户评分 评论评分 评价星级 评分星级 相似度 是否相似 是否相关
    是否正面 是否好评 正负面
""")
# Names that identify a header row. TRIPLES[0] and POSITIVES do so only as whole groups.
KNOWN = frozenset((*TEXTS, *LABELS, *(name for group in (*_PAIRS, TRIPLES[1]) for name in group)))
