"""Every sentence, title and head of a report's pages, in English and Chinese.

The terms are those of the field in both: precision is 精确率, accuracy 准确率, the expected
calibration error 期望校准误差. What tasks say is in `tasks.wording`, and with each task.
"""

from roformer_tf.tasks.wording import Words

# The page

REPORT = Words("Fine-tuning report: {task}", "微调报告：{task}")
SOURCE = Words("{checkpoint}, fine-tuned on {train}", "{checkpoint}，在 {train} 上微调")
WARNING = Words("Warning:", "注意：")
COLON = Words(": ", "：")
PAGE_LANGUAGE = Words("en", "zh-CN")

RESULTS = Words("Results", "结果")
PER_LABEL = Words("Precision, recall and F1 by label", "各标签的精确率、召回率与 F1")
CALIBRATION = Words("Calibration", "置信度校准")
MISTAKES = Words("Errors", "错误样本")
LABEL_ISSUES = Words("Possible label errors", "疑似标注错误")
DATA = Words("Data", "数据")
TRAINING = Words("Training", "训练过程")
TRIALS = Words("Runs compared", "多次训练对比")
SETTINGS = Words("Settings", "参数设置")
HARDWARE = Words("Hardware and time", "硬件与耗时")

# Sets of examples

SETS = {
    "train": Words("training set", "训练集"),
    "valid": Words("validation set", "验证集"),
    "test": Words("test set", "测试集"),
}
NEW_TEXTS = Words("{set} (new texts)", "{set}新文本")
OF_BASELINE = Words("baseline, {set}", "基线（{set}）")
OF_METHOD = Words("{name}, {set}", "{name}（{set}）")
SET = Words("set", "数据集")
EXAMPLES = Words("examples", "样本数")

# Results

METRIC_ON = Words("{metric}, {set}", "{metric}（{set}）")
LEAD = Words(
    "On {examples}, the model's {metric} is {ours} (95% confidence interval {interval}).",
    "在{examples}上，模型的{metric}为 {ours}（95% 置信区间 {interval}）。",
)
LEAD_WITHOUT_INTERVAL = Words(
    "On {examples}, the model's {metric} is {ours} (no confidence interval: {reason}).",
    "在{examples}上，模型的{metric}为 {ours}（无置信区间：{reason}）。",
)
LEAD_UNDEFINED = Words(
    "On {examples}, {metric} has no value: {reason}.",
    "在{examples}上无法计算{metric}：{reason}。",
)
LEAD_EXAMPLES = Words("the {number} examples of the {set}", "{set}的 {number} 条样本")
LEAD_NEW_TEXTS = Words(
    "the {number} examples of the {set} whose texts are new",
    "{set}中 {number} 条训练时未见过的样本",
)
LEAD_BASELINE = Words(
    "A simple baseline ({baseline}) has {other} on the same examples: {verdict}.",
    "简单基线（{baseline}）在同样的样本上为 {other}，{verdict}。",
)
BETTER = Words("the model is clearly better", "模型明显优于基线")
HARDLY_BETTER = Words(
    "the difference may well be chance", "两者的差距可能只是偶然，不足以说明模型更好"
)
NO_BETTER = Words("the model is no better", "模型并不优于基线")
INTERVALS = Words(
    "In brackets: the 95% confidence interval (bootstrap within labels; Wilson's for a share of "
    "independent examples). If as many examples were drawn anew, the figure would lie within it "
    "about 95 times in 100.",
    "方括号内是 95% 置信区间（按标签分层的 bootstrap；独立样本的比例用 Wilson 区间）："
    "假如重新抽取同样多的样本，100 次里约有 95 次指标落在该区间内。",
)
ABSENT_INTERVALS = Words("“—” instead of an interval: {reason}.", "区间处为“—”：{reason}。")
BASELINE = Words("Baseline: {name}.", "基线方法：{name}。")
RANGES = Words(
    "{metric} with 95% confidence intervals, model and baseline",
    "{metric}及其 95% 置信区间：模型与基线",
)

# Data

TOKENS = {
    "median": Words("median length (tokens)", "长度中位数（token）"),
    "90th": Words("90th percentile", "90% 分位数"),
    "99th": Words("99th percentile", "99% 分位数"),
    "longest": Words("maximum", "最大长度"),
}
LONGER = Words("longer than {length}", "超过 {length} 的占比")
NUMBERS = {
    "lowest": Words("minimum", "最小值"),
    "mean": Words("mean", "均值"),
    "highest": Words("maximum", "最大值"),
    "deviation": Words("standard deviation", "标准差"),
}
LABEL_BALANCE = Words("label (share of examples)", "标签（占样本比例）")
DUPLICATES = Words("duplicate texts", "重复文本")
COUNT = Words("count", "条数")
ALSO_IN = Words("{set}: also in the {other}", "{set}：同时出现在{other}中")
REPEATED = Words("{set}: repeated within the set", "{set}：集内重复")
CONTRADICTING = Words("texts with more than one label", "同一文本有多个不同标签")

# Training

EPOCH = Words("epoch", "轮次")
STEP = Words("step", "步数")
LOSS = Words("training loss", "训练损失")
LOSS_CURVE = Words("training loss by step", "训练损失曲线")
METRIC_CURVE = Words("{metric} by step", "{metric}曲线")
RUN = Words("run", "训练")
TIME = Words("time", "耗时")
SPREAD = Words(
    "mean ± standard deviation of {number} runs at {rate:g}",
    "学习率 {rate:g} 的 {number} 次训练：均值 ± 标准差",
)

# Labels, calibration, errors

LOWEST_F1 = Words(
    "The {shown} of {all} labels with the lowest F1.",
    "共 {all} 个标签，这里列出 F1 最低的 {shown} 个。",
)
ABOUT_PRECISION = Words(
    "of the examples that are predicted to have the label, the share that has it",
    "预测为该标签的样本中，预测正确的比例",
)
ABOUT_RECALL = Words(
    "of the examples that have the label, the share that is found",
    "带有该标签的样本中，被正确找出的比例",
)
ABOUT_F1 = Words("both in one figure, their harmonic mean", "精确率与召回率的调和平均")
SUPPORT = Words("labelled", "标注数")
PREDICTIONS = Words("predicted", "预测数")
ECE = Words(
    "The expected calibration error (ECE) is {ece}: so much do predicted probabilities differ, on "
    "average, from how often such predictions are right. Of predictions made with a probability "
    "of 90%, about 90% should be right.",
    "期望校准误差（ECE）为 {ece}，即预测概率与实际正确的比例平均相差这么多。"
    "理想情况下，概率为 90% 的预测中约有 90% 是对的。",
)
PROBABILITY = Words("predicted probability", "预测概率")
MEAN_PROBABILITY = Words("mean predicted probability", "平均预测概率")
FREQUENCY = Words("observed frequency", "实际正确比例")
NUMBER = Words("count", "数量")
BIN = Words("{low} to {high}", "{low} 至 {high}")
RELIABILITY = Words("reliability diagram", "可靠性图")
TRUE_VALUE = Words("true value", "真实值")
PREDICTED_VALUE = Words("predicted value", "预测值")

DOUBTFUL = Words(
    "{found} of the {checked} examples that were checked may have a wrong label. Neither the model "
    "nor the baseline was trained on them, and both predict the same other label (confident "
    "learning, Northcutt et al. 2021). {file} lists them all, the most doubtful first. Correct a "
    "label only after you have read the text.",
    "在检查过的 {checked} 条样本中，有 {found} 条的标注可能有误："
    "模型和基线都没有在这些样本上训练过，却一致预测为另一个标签"
    "（置信学习，Northcutt 等，2021）。全部列在 {file} 里，"
    "最可疑的排在最前。请读过原文再修改标注。",
)
NOT_DOUBTFUL = Words(
    "Of the {checked} examples that were checked, none has a doubtful label.",
    "检查过的 {checked} 条样本中，没有发现可疑的标注。",
)
NOT_CHECKED = {
    "no_baseline": Words(
        "Labels were not checked: there is no baseline that would have to agree.",
        "没有检查标注：缺少用来印证的基线。",
    ),
    "not_better": Words(
        "Labels were not checked: the model is not better than the baseline, so its doubts may "
        "well be mistakes of its own.",
        "没有检查标注：模型并不比基线好，它的怀疑很可能是自身的错误。",
    ),
}
CHECKED_PART = Words(
    "Only new texts of the validation set are checked: {checked} of the {all} examples outside the "
    "test set. With --folds 5 all of these are. Test labels are left alone, since correcting only "
    "those that the model rejects would flatter its figures.",
    "只检查验证集中未在训练集出现的文本：测试集以外共 {all} 条样本，这里检查了 {checked} 条；"
    "加上 --folds 5 就能检查这些样本的全部。测试集的标注不检查："
    "只改正模型不认同的标注会使指标虚高。",
)
SUGGESTED = Words("suggested", "建议")

# Settings, hardware

SETTING = Words("setting", "参数")
VALUE = Words("value", "取值")
UNSET = Words("unset", "未设置")
HARDWARE_NAMES = {
    "processor": Words("processor", "处理器"),
    "accelerators": Words("accelerators", "加速器"),
    "software": Words("software", "软件"),
    "none": Words("none", "无"),
}
PHASES = {
    "training": Words("time of training", "训练耗时"),
    "baseline": Words("time of the baseline", "基线耗时"),
}
OTHER_PHASE = Words("time: {name}", "耗时：{name}")
SECONDS = Words("{seconds:.1f} s", "{seconds:.1f} 秒")
MINUTES = Words("{minutes} min {seconds} s", "{minutes} 分 {seconds} 秒")
HOURS = Words("{hours} h {minutes} min", "{hours} 小时 {minutes} 分")

# Warnings

LEAK = Words(
    "{train} of {all} examples of the {set} have texts that also stand in the training "
    "set{valid}{repeated}",
    "{set}的 {all} 条样本中，有 {train} 条的文本也出现在训练集里{valid}{repeated}",
)
LEAK_VALID = Words(", {number} more in the validation set", "，另有 {number} 条出现在验证集里")
LEAK_REPEATED = Words(", and {number} repeat another one", "，还有 {number} 条在集内重复")
LEAK_WITHOUT = Words(
    "{leak}; without them, {metric} is {figure} {interval}.",
    "{leak}；去掉这些样本后，{metric}为 {figure} {interval}。",
)
LEAK_ALONE = Words("{leak}.", "{leak}。")
LEAK_ALL = Words(
    "{leak}: no figure here tells how the model does on new texts. Give other texts by --test.",
    "{leak}：这里的指标都无法反映模型在新文本上的表现，请用 --test 换一份测试数据。",
)
NO_TEST = Words(
    "There is no test set: the figures are on the validation set, by which the best weights were "
    "chosen, so that they are a little too good. Give --test, or a --test-share.",
    "没有测试集：指标是在验证集上算的，而最佳权重正是按验证集挑选的，结果会略偏乐观。"
    "请用 --test 提供测试数据，或用 --test-share 从训练数据中划分。",
)
UNDEFINED = Words(
    "{metrics}: no value on the {set}, because {reason}.",
    "{set}上无法计算{metrics}：{reason}。",
)
MISSING = Words(
    "The {set} has no example of {labels}: it does not show how well the model predicts them.",
    "{set}中没有标签为 {labels} 的样本，无从得知模型在这些标签上的表现。",
)
BEHIND = Words(
    "The model is no better than the simple baseline: {metric} {ours} against {other} on the "
    "{set}.",
    "模型并不优于简单基线：{set}上的{metric}为 {ours}，基线为 {other}。",
)
HARDLY_AHEAD = Words(
    "The model is hardly better than the simple baseline: {metric} {ours} against {other} on the "
    "{set}.",
    "模型与简单基线相差无几：{set}上的{metric}为 {ours}，基线为 {other}。",
)
NO_BASELINE = Words(
    "There is no baseline to compare with, for it failed: {problem}.",
    "没有基线可供对比，拟合基线时出错：{problem}。",
)
FEW = Words(
    "The {set} has only {examples}: small differences in the figures are chance.",
    "{set}只有 {number} 条样本：指标的小幅差异可能只是偶然。",
)
CONTRADICTIONS = Words(
    "{texts} with more than one label in the data: no model can be right on all.",
    "数据中有 {number} 条文本被标了不同的标签：任何模型都不可能全部答对。",
)
LONG = Words(
    "{share} of the training texts are longer than {length} tokens: {cut}.",
    "{share} 的训练文本超过 {length} 个 token：{cut}。",
)
CUT = {
    "head": Words("what comes after is not read", "超出的部分不会被读取"),
    "head-tail": Words("their middle is not read", "中间的部分不会被读取"),
}
UNEVEN = Words(
    "The labels are imbalanced: {common} stands {most:,} times in the training set, {rare} "
    "{times}. Look at the figures of each label.",
    "标签分布不均衡：训练集中“{common}”有 {most:,} 条，“{rare}”只有 {least:,} 条。"
    "请结合各标签的指标来看。",
)
NEVER = Words(
    "Never predicted, though in the data: {labels}.",
    "数据中有、但从未被预测出的标签：{labels}。",
)
UNSURE = Words(
    "The probabilities are off by {error} on average (expected calibration error): rank by them, "
    "but do not take them at their word.",
    "预测概率平均偏差 {error}（期望校准误差）：可以用来排序，但不宜直接当作可信程度。",
)

# The model card

CARD_HEAD = Words("## {head}", "## {head}")
CARD_ABOUT = Words(
    "A RoFormer for {task}: {checkpoint}, fine-tuned on {train} with roformer_tf.",
    "用于{task}的 RoFormer 模型：由 roformer_tf 在 {train} 上微调 {checkpoint} 得到。",
)
CARD_LABELS = Words("Labels: {labels}.", "标签：{labels}。")
CARD_USE = Words("How to use", "使用方法")
CARD_COMMANDS = Words("Or on the command line:", "或者在命令行里：")
CARD_TRANSFORMERS = Words(
    "Or in `transformers`, which truncates long texts only with `truncation=True`:",
    "也可以用 `transformers`，长文本需加 `truncation=True` 才会截断：",
)
CARD_CROSS_ENCODER = Words("Or in `sentence-transformers`:", "也可以用 `sentence-transformers`：")
CARD_NO_RANK = Words(
    "`CrossEncoder.rank` takes models with one score and refuses this one, which has one for each "
    "label. Rank by the column of a label instead.",
    "`CrossEncoder.rank` 只支持输出单个分数的模型；本模型每个标签各有一个分数，"
    "请按某个标签那一列自行排序。",
)
CARD_FIGURE = Words("figure", "指标值")
CARD_INTERVAL = Words("95% confidence interval", "95% 置信区间")
CARD_BASELINE = Words("baseline", "基线")
CARD_INTENDED = Words("Intended use", "适用范围")
CARD_INTENDED_FOR = Words(
    "For {task} of Chinese texts like those it was trained on. Before it is used on texts of "
    "another field, source or time, it should be evaluated on some of them: `roformer-tf evaluate "
    "path/to/this/folder --data labelled.tsv`. It should not decide about people without a human "
    "review.",
    "适用于与训练数据相近的中文文本的{task}。用到其他领域、来源或时期的文本之前，应先用其中一部分做评测："
    "`roformer-tf evaluate path/to/this/folder --data labelled.tsv`。"
    "不应在没有人工复核的情况下用它作出影响个人的决定。",
)
CARD_LIMITS = Words("Limitations", "局限")
CARD_CLOSED = Words(
    "It knows the labels above and no others: a text that fits none of them is still answered with "
    "them.",
    "模型只认识上面列出的标签：即使文本与它们都不相符，也只会在这些标签里作答。",
)
CARD_DOMAIN = Words(
    "It repeats what its data say, mistakes and prejudices among them; so does the pretrained "
    "model that it began with.",
    "模型会沿袭训练数据以及预训练模型中的错误与偏见。",
)
CARD_LEGAL_TAGS = Words(
    "The pipeline of `transformers` takes the likeliest tag of each unit and does not decode: "
    "where such tags may not follow each other, its entities are others than these.",
    "`transformers` 的 pipeline 对每个单元只取概率最大的标签，不做合法解码："
    "这些标签的前后顺序不合法时，抽出的实体与本模型不同。",
)
CARD_CRF = Words(
    "For `roformer_tf` alone: the tags are decoded with learnt transitions (`crf.*` in the "
    "weights), which the classes of `transformers` would leave out; its pipelines refuse the "
    "folder.",
    "只能用 `roformer_tf` 加载：标签按学到的转移分数（权重里的 `crf.*`）解码，"
    "`transformers` 的类不认识这部分，其 pipeline 会拒绝加载。",
)
CARD_V2 = Words(
    "**Not for `transformers`**, which loads this folder without an error, but knows no "
    "RoFormerV2 and computes nonsense.",
    "**不要用 `transformers` 加载**：它不支持 RoFormerV2，加载时不会报错，但算出的结果毫无意义。",
)
CARD_LICENSE = Words(
    "The licenses of the pretrained model and of the data hold for it, too; they are not known "
    "here. Add a `license:` at the top of this file before you publish it.",
    "预训练模型和训练数据的许可条款同样适用，这里无从得知。发布前请在本文件开头补上 `license:`。",
)
