// Causal language models: a prompt, the settings, and the text as it is generated.
Object.assign(WORDS, {
  ask: ["生成", "Generate"],
  prompt: ["开头", "Prompt"],
  source: ["原句", "Sentence to paraphrase"],
  settings: ["生成设置", "Settings"],
  unset: ["不设", "not set"],
  fresh: ["每次不同", "new each time"],
  stopped: ["已停止", "stopped"],
  score: ["平均对数概率", "mean log-probability"],
  cosine: ["余弦相似度", "cosine"],
  nothing: ["（没有写出内容）", "(no text)"],
});
const SETTINGS = {  // by their names in the API; all except `stop` are numbers
  max_tokens: ["最多词元数", "Maximum tokens"],
  min_tokens: ["最少词元数", "Minimum tokens"],
  temperature: ["温度", "Temperature"],
  top_k: ["top-k", "Top-k"],
  top_p: ["top-p", "Top-p"],
  repetition_penalty: ["重复惩罚", "Repetition penalty"],
  samples: ["采样条数", "Samples"],
  beams: ["束宽", "Beams"],
  length_penalty: ["束搜索长度惩罚", "Length penalty (beams)"],
  seed: ["随机种子", "Seed"],
  stop: ["停止符（空格分隔）", "Stop at (separated by spaces)"],
  paraphrases: ["同义句条数", "Paraphrases"],
};
let underway = null;  // cancels the current request

function build() {
  at("texts").append(...field(service.attention_type === "unilm" ? "source" : "prompt", 0));
  const details = make("details");
  const grid = make("div", "", "settings");
  details.append(spoken("summary", "settings"), grid);
  for (const [name, words] of Object.entries(SETTINGS)) {
    if (name === "paraphrases" && !service.paraphrases) continue;
    const input = make("input");
    input.id = `setting-${name}`;
    if (name !== "stop") [input.type, input.step] = ["number", "any"];
    const label = spoken("label", words);
    label.htmlFor = input.id;
    label.title = name;
    const cell = make("div");
    cell.append(label, input);
    grid.append(cell);
  }
  at("texts").append(details);
  at("form").noValidate = true;  // the service validates: a browser cannot point into the folded settings
  return ["今天天气很好，我们"];
}

function translated() {  // placeholders in the chosen language: the defaults
  for (const name of Object.keys(SETTINGS)) {
    const input = at(`setting-${name}`);
    if (!input) continue;
    const own = name === "seed" ? say("fresh") : service.settings[name];
    input.placeholder = own === undefined ? 0 : own === null || own.length === 0 ? say("unset") : own;
  }
}

function chosen() {  // the settings that the user has set
  const settings = {};
  for (const [name, words] of Object.entries(SETTINGS)) {
    const input = at(`setting-${name}`);
    if (!input) continue;
    if (input.validity.badInput) throw new Refusal([`${words[CHINESE]}：不是数字`, `${words[ENGLISH]}: not a number`]);
    if (input.value.trim() === "") continue;
    settings[name] = name === "stop" ? input.value.trim().split(/\s+/) : Number(input.value);
  }
  return settings;
}

function read({ prompt, texts, measure = "score", running, stopped, seed }) {
  const shown = texts.flatMap(({ text, score }) => {
    const line = make("p", "", "written");
    if (service.attention_type === "causal") line.append(make("span", prompt, "before"));
    line.append(make("span", text || running ? text : say("nothing")));
    return score === undefined ? [line] : [line, make("p", `${say(measure)} ${score.toFixed(3)}`, "score")];
  });
  const notes = [];
  if (stopped) notes.push(say("stopped"));
  if (seed !== undefined) notes.push(`${say(SETTINGS.seed)} ${seed}`);
  return [...shown, make("p", notes.join(" · "), "score")];
}

async function* events(response) {  // the JSON after each "data: " of a stream
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      yield JSON.parse(text.slice("data: ".length, end));
    }
  }
}

async function follow(response, prompt) {  // show each piece as it arrives
  const one = { text: "" };
  last = { prompt, texts: [one], running: true };
  show();
  const words = () => at("result").querySelector(".written").lastChild;  // a change of language replaces the element
  for await (const event of events(response)) {
    if (event.error) throw new Refusal(REFUSALS[500]);
    if (event.done) {
      last = { prompt, texts: [{ text: event.text, score: event.score }], seed: event.seed };
      return;
    }
    one.text += event.text;
    words().textContent = one.text;
  }
  throw new Refusal(WORDS.unreachable);  // the stream ended without "done"
}

async function write(prompt, signal) {
  const question = { text: prompt, ...chosen() };
  const several = ["samples", "beams"].some((name) => question[name] > 1) || question.paraphrases > 0;
  const response = await post("generate", { ...question, stream: !several }, signal);
  if (!several) return follow(response, prompt);
  const { generations, seed } = await response.json();
  last = { prompt, texts: generations[0], measure: question.paraphrases ? "cosine" : "score", seed };
}

async function answer() {
  if (underway) return;
  underway = new AbortController();
  at("ask").disabled = true;
  at("stop").hidden = false;
  at("result").ariaBusy = "true";  // screen readers read the complete text
  last = null;
  at("error").hidden = at("result").hidden = true;
  try {
    await write(at("text-0").value, underway.signal);
  } catch (error) {
    if (error.name !== "AbortError") last = error.words ? error : new Refusal(WORDS.unreachable);
    else if (last) Object.assign(last, { running: false, stopped: true });
  } finally {
    underway = null;
    at("ask").disabled = false;
    at("stop").hidden = true;
    at("result").ariaBusy = "false";
  }
  show();
}

at("stop").addEventListener("click", () => underway?.abort());
