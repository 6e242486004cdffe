// Fine-tuned models: a text, or a pair, and the prediction with its probabilities, or its answer.
Object.assign(WORDS, {
  ask: ["预测", "Predict"],
  noAnswer: ["上下文里没有答案", "The context has no answer"],
  noEntity: ["没有找到实体", "No entity found"],
  noLabel: ["没有标签", "No label"],
  separator: ["，", ", "],
  asked: ["要找的标签，用空格隔开（可不填）", "Labels to find, separated by spaces (optional)"],
});
const NAMES = {
  1: [["文本", "Text"]],
  spaced: [["文本（词与词之间用空格隔开）", "Words, separated by spaces"]],
  2: [["第一段文本", "First text"], ["第二段文本", "Second text"]],
  question: [["问题", "Question"], ["上下文", "Context"]],
  choices: [["文本", "Text"], ["候选，每行一个", "Choices, one a line"]],
  3: [["文本 A", "Text A"], ["文本 B", "Text B"], ["文本 C", "Text C"]],
};
const EXAMPLES = {
  1: ["上周末和王小明去北京，住在中关村的一家酒店，房间很干净，早餐也不错。"],
  spaced: ["王小明 在 北京 上学"],
  2: ["花呗怎么提高额度", "怎样才能把花呗的额度调高"],
  question: ["故宫是哪一年建成的？", "故宫位于北京市中心，建成于1420年，是明清两代的皇宫。"],
  choices: ["他说话总是#idiom#，让人听不懂。", "含糊其辞\n画蛇添足\n守株待兔"],
  3: ["怎么修改密码", "忘记密码怎么办", "今天天气很好"],
};
const MOST_BARS = 20;

function build() {
  const special = service.spaced_units ? "spaced" : service.lists_texts ? "choices"
    : service.task === "question-answering" ? "question" : "";
  const kind = special || service.text_columns.length;
  at("texts").append(...NAMES[kind].flatMap(field));
  at("texts").className = NAMES[kind].length > 1 ? "several" : "";
  if (service.accepts_labels && kind === 1) {
    const label = spoken("label", "asked");
    label.htmlFor = "labels";
    const input = make("input");
    input.id = "labels";
    const cell = make("p");
    cell.append(label, input);
    at("texts").append(cell);
  }
  return EXAMPLES[kind];
}

function translated() { /* the form has only labels */ }

function bars(probabilities, chosen) {
  const list = make("dl", "", "bars");
  const sorted = Object.entries(probabilities).sort((one, other) => other[1] - one[1]);
  for (const [label, probability] of sorted.slice(0, MOST_BARS)) {
    const picked = chosen.includes(label) ? "chosen" : "";
    const track = make("dd", "", "track");
    const fill = make("div", "", `fill ${picked}`);
    fill.style.width = `${100 * probability}%`;
    track.append(fill);
    const percent = `${(100 * probability).toFixed(1)}%`;
    list.append(make("dt", label, picked), track, make("dd", percent, `number ${picked}`));
  }
  const left = Math.max(sorted.length, service.labels.length) - list.childElementCount / 3;
  if (left <= 0) return [list];
  return [list, make("p", say([`另有 ${left} 个标签`, `${left} more labels`]), "hint")];
}

function hue(label) {  // the same label has the same colour everywhere
  let sum = 0;
  for (const character of label) sum = (31 * sum + character.codePointAt(0)) % 360;
  return sum;
}

function marked(text, label) {
  const mark = make("mark", text);
  mark.style.setProperty("--hue", hue(label));
  mark.append(make("small", label));
  return mark;
}

function tagged(text, answer) {
  const whole = make("div", "", "tagged");
  const characters = Array.from(text);  // positions count characters, not UTF-16 units
  let end = 0;
  if (!answer.entities) {
    for (const tag of answer.tags) whole.append(marked(tag.unit, tag.label), " ");
    return [whole];
  }
  for (const entity of answer.entities) {
    whole.append(characters.slice(end, entity.start).join(""), marked(entity.text, entity.label));
    end = entity.end;
  }
  whole.append(characters.slice(end).join(""));
  if (answer.entities.length) return [whole];
  return [make("p", say("noEntity"), "answer"), whole];
}

function extracted(answer) {  // entities may overlap, so each has a line of its own
  if (!answer.spans.length) return [make("p", say("noEntity"), "answer")];
  return answer.spans.map((span) => {
    const line = make("p", "", "tagged");
    line.append(marked(span.text, span.label));
    line.append(make("small", ` ${span.start}–${span.end} · ${(100 * span.score).toFixed(1)}%`));
    return line;
  });
}

function found(context, { answer, start, score }) {
  if (!answer) return [make("p", say("noAnswer"), "answer")];
  const whole = make("div", "", "tagged");
  const characters = Array.from(context);  // positions count characters, not UTF-16 units
  const end = start + Array.from(answer).length;
  const percent = `${(100 * score).toFixed(1)}%`;
  whole.append(characters.slice(0, start).join(""), marked(answer, percent));
  whole.append(characters.slice(end).join(""));
  return [make("p", answer, "answer"), whole];
}

function read({ answer, texts }) {
  if ("spans" in answer) return extracted(answer);
  if ("answer" in answer) return found(texts[1], answer);
  if ("tags" in answer) return tagged(texts[0], answer);
  if ("score" in answer) return [make("p", String(+answer.score.toPrecision(6)), "answer")];
  if (service.lists_texts) {
    const choices = lines(texts[1]);
    const scores = Object.fromEntries(choices.map((text, i) => [text, answer.scores[i]]));
    const chosen = choices[answer.label];
    return [make("p", chosen, "answer"), ...bars(scores, [chosen])];
  }
  if (!("scores" in answer)) return [make("p", JSON.stringify(answer), "answer")];
  const chosen = answer.labels ?? [answer.label];
  const headline = make("p", "", "answer");
  if (service.headline) headline.textContent = say(service.headline).replace("{}", () => answer.label);
  else headline.textContent = chosen.join(say("separator")) || say("noLabel");
  return [headline, ...bars(answer.scores, chosen)];
}

function lines(text) {
  return text.split("\n").filter((line) => line.trim());
}

async function answer() {
  const texts = [...document.querySelectorAll("textarea")].map((area) => area.value);
  at("ask").disabled = true;
  try {
    const body = { text: texts.length > 1 ? texts : texts[0] };
    const labels = at("labels")?.value.split(/\s+/).filter(Boolean) ?? [];
    if (labels.length) Object.assign(body, { text: undefined, texts, labels });
    if (service.lists_texts) Object.assign(body, { text: texts[0], choices: lines(texts[1]) });
    const response = await post("predict", body);
    const { predictions } = await response.json();
    last = { answer: predictions[0], texts };
  } catch (error) {
    last = error;
  } finally {
    at("ask").disabled = false;
  }
  show();
}
