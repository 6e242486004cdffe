// Sentence vectors: two texts and their cosine; with an index, a query and its documents.
Object.assign(WORDS, {
  cosine: ["余弦相似度", "Cosine"],
  nothing: ["没有找到文档", "No document found"],
});
const NAMES = [["第一段文本", "First text"], ["第二段文本", "Second text"]];
const QUERY = ["查询", "Query"];
const EXAMPLES = ["怎么修改密码", "忘记密码了，如何重新设置？"];

function build() {
  const searches = service.documents !== null;
  WORDS.ask = searches ? ["检索", "Search"] : ["比较", "Compare"];
  const names = searches ? [QUERY] : NAMES;
  at("texts").append(...names.flatMap(field));
  at("texts").className = names.length > 1 ? "several" : "";
  return EXAMPLES;
}

function translated() { /* the form has only labels */ }

function read({ results, vectors }) {
  if (vectors) {
    const [one, other] = vectors;
    const cosine = one.reduce((sum, x, i) => sum + x * other[i], 0);
    return [make("p", `${say("cosine")} ${cosine.toFixed(4)}`, "answer")];
  }
  if (!results[0].length) return [make("p", say("nothing"), "answer")];
  return results[0].flatMap(({ document: text, score, id }) => [
    make("p", text, "written"),
    make("p", [score.toFixed(4), id].filter(Boolean).join("  "), "score"),
  ]);
}

async function answer() {
  const texts = [...document.querySelectorAll("textarea")].map((area) => area.value);
  at("ask").disabled = true;
  try {
    const searches = service.documents !== null;
    const response = await post(searches ? "search" : "embed", searches ? { text: texts[0] } : { texts });
    last = await response.json();
  } catch (error) {
    last = error;
  } finally {
    at("ask").disabled = false;
  }
  show();
}
