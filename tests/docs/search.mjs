// Searches a built site with the worker that its pages use: node search.mjs SITE WORD … → JSON, locations of each word.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const [site, ...words] = process.argv.slice(2);
const workers = join(site, "assets/javascripts/workers");
const worker = readdirSync(workers).find((name) => /^search\..*\.js$/.test(name));
let receive, answer;
const scope = {
  console,
  addEventListener: (_, listener) => (receive = listener),
  postMessage: (message) => answer(message),
  importScripts: (...scripts) => scripts.forEach((script) => run(join(workers, script))),
};
scope.self = scope;
vm.createContext(scope);
const run = (file) => vm.runInContext(readFileSync(file, "utf8"), scope);
const ask = (data) => new Promise((answered) => ((answer = answered), receive({ data })));

run(join(workers, worker));
const index = JSON.parse(readFileSync(join(site, "search/search_index.json"), "utf8"));
// As the page prepares it: a section knows its page.
await ask({ type: 0, data: { ...index, options: { suggest: false } } });
const found = {};
for (const word of words) {
  const { data } = await ask({ type: 2, data: word });
  found[word] = data.items.map((page) => page[0].location.split("#")[0]);
}
console.log(JSON.stringify(found));
