// The page of the workflow service. Whatever comes from the service is put in as text, never as HTML.
"use strict";

const at = id => document.getElementById(id);
const EVERY = 2000;          // Milliseconds between two looks.
const MOST_DRAWN = 400;      // Jobs in the picture.
const MOST_LOG = 200000;     // Characters of the log that are kept.
const MOST_RESULTS = 50;     // Files that are listed as results.
const MARKS = {planned: "…", running: "▶", succeeded: "✓", failed: "✗"};
const COLUMN = 190, ROW = 34, WIDE = 150, HIGH = 24;

const shown = {where: null, log: 0, run: "", graph: "", busy: false};

function make(name, text, more) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  return Object.assign(element, more || {});
}

function draw(name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function say(text, passes) {
  clearTimeout(shown.passing);
  if (at("message").textContent !== text) at("message").textContent = text;
  if (passes) shown.passing = setTimeout(() => say(""), 8000);
}

// Replaces what is in an element, unless it is as it was: focus stays where it is.
function fill(element, parts) {
  const next = make(element.tagName);
  next.append(...parts);
  if (next.innerHTML === element.innerHTML) return;
  const active = document.activeElement;
  const mark = element.contains(active) ? active.getAttribute("data-mark") : null;
  element.replaceChildren(...next.childNodes);
  if (mark !== null) {
    for (const one of element.querySelectorAll("[data-mark]")) if (one.getAttribute("data-mark") === mark) one.focus();
  }
}

class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

async function ask(method, path, body, fields) {
  const headers = {authorization: "Bearer " + sessionStorage.getItem("token"), ...(fields || {})};
  if (body !== undefined) headers["content-type"] = "application/json";
  const reply = await fetch("api/v1/" + path, {method, headers, cache: "no-store", credentials: "omit",
    body: body === undefined ? undefined : JSON.stringify(body)});
  const text = await reply.text();
  let value = null;
  try { value = text ? JSON.parse(text) : null; } catch { throw new Refused(reply.status, "The reply can't be read."); }
  if (!reply.ok) throw new Refused(reply.status, value && value.error || "refused");
  return value;
}

function bytes(n) {
  if (n === null || n === undefined) return "no limit";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return (unit ? n.toFixed(1) : n) + " " + units[unit];
}

function span(from, to) {
  if (!from) return "";
  const s = Math.max(0, (to || Date.now() / 1000) - from);
  if (s < 1) return "< 1 s";
  if (s < 90) return Math.round(s) + " s";
  if (s < 5400) return Math.round(s / 60) + " min";
  return s < 172800 ? (s / 3600).toFixed(1) + " h" : Math.round(s / 86400) + " days";
}

// #/w/NAME/RUN; another fragment, as of the link to the content, leads nowhere else.
function place() {
  if (location.hash && !location.hash.startsWith("#/")) return shown.where;
  return shown.where = parsed();
}

function parsed() {
  const decoded = part => { try { return decodeURIComponent(part); } catch { return ""; } };
  const parts = location.hash.split("/").slice(1).map(decoded);
  return parts[0] === "w" && parts[1] ? {workflow: parts[1], run: Number(parts[2]) || 0} : null;
}

function link(workflow, run) {
  return "#/w/" + encodeURIComponent(workflow) + (run ? "/" + run : "");
}

function show(section) {
  for (const id of ["enter", "overview", "workflow"]) at(id).hidden = id !== section;
}

async function overview() {
  const [me, all] = await Promise.all([ask("GET", "me"), ask("GET", "workflows")]);
  at("user").textContent = me.user;
  at("who").hidden = false;
  at("shares").textContent = me.runs.used + " of " + me.runs.allowed + " runs, " + bytes(me.uploads.used) + " of " +
    bytes(me.uploads.allowed) + " uploaded";
  const cards = all.workflows.map(w => {
    const run = w.runs[w.runs.length - 1];
    const a = make("a", undefined, {href: link(w.name)});
    a.dataset.mark = w.name;
    a.append(make("b", w.name));
    a.append(run ? make("span", "run " + run.number + ": " + run.state, {className: "state " + run.state})
      : make("span", w.state === "ready" ? "not started yet" : w.state, {className: "quiet"}));
    a.append(make("span", w.executor + (w.campaign ? ", campaign " + w.campaign.name : ""), {className: "quiet"}));
    const li = make("li");
    li.append(a);
    return li;
  });
  fill(at("workflows"), cards);
  at("nothing").hidden = cards.length > 0;
  document.title = "Workflows – Forebay";
  show("overview");
}

function campaign(w) {
  const c = w.campaign;
  at("campaign").hidden = !c;
  if (!c) return;
  at("campaign-name").textContent = c.name;
  const used = c.usage ? c.usage.bytes : null;
  const is_over = used !== null && c.bytes && used > c.bytes;
  at("bytes-label").textContent = c.error ? "Use isn't known: " + c.error : used === null ? "Use isn't counted yet" :
    bytes(used) + " used of " + bytes(c.bytes) + (is_over ? ": over quota" : "");
  at("bytes").value = used !== null && c.bytes ? Math.min(1, used / c.bytes) : 0;
  at("bytes").className = is_over ? "over" : "";
  at("campaign-about").textContent = (c.tier ? "on " + c.tier + ", " : "") + "at " + c.place +
    (c.ends ? ", ends " + new Date(c.ends * 1000).toLocaleString() : "");
}

function picture(graph) {
  const key = JSON.stringify(graph.jobs.map(j => j.state).concat(graph.jobs.length));
  if (shown.graph === key) return;
  shown.graph = key;
  const counts = {};
  for (const job of graph.jobs) counts[job.state] = (counts[job.state] || 0) + 1;
  const words = Object.entries(counts).map(([state, n]) => n + " " + state).join(", ");
  at("graph-about").textContent = graph.jobs.length ? graph.jobs.length + " jobs: " + words +
    (graph.is_cut ? "; more aren't shown" : "") +
    (graph.jobs.length > MOST_DRAWN ? ". Too many to draw: see the table." : "") : "The jobs aren't known yet.";
  if (!graph.jobs.length || graph.jobs.length > MOST_DRAWN) { at("graph").replaceChildren(); return; }
  const columns = [], before = graph.jobs.map(() => []);
  graph.jobs.forEach((job, n) => (columns[job.layer] = columns[job.layer] || []).push(n));
  for (const [from, to] of graph.edges) if (before[to]) before[to].push(from);
  const deepest = Math.max(...columns.map(column => column ? column.length : 0)), places = [];
  columns.forEach((column, x) => {
    // By name; or near what a job needs, so that few lines cross.
    const mean = n => before[n].reduce((sum, m) => sum + (places[m] ? places[m].y : 0), 0) / before[n].length;
    const names = graph.jobs.map(j => j.rule + Object.values(j.wildcards).join(" "));
    column.sort((a, b) => before[a].length && before[b].length ? mean(a) - mean(b) : names[a] < names[b] ? -1 : 1);
    const top = 12 + (deepest - column.length) * ROW / 2;
    column.forEach((n, y) => { places[n] = {x: 12 + x * COLUMN, y: top + y * ROW}; });
  });
  const width = 24 + (columns.length - 1) * COLUMN + WIDE, height = 24 + (deepest - 1) * ROW + HIGH;
  const svg = draw("svg", {width, height, viewBox: "0 0 " + width + " " + height, role: "img",
    "aria-label": "Graph of " + graph.jobs.length + " jobs: " + words + ". The table below has all of them."});
  for (const [from, to] of graph.edges) {
    const a = places[from], b = places[to];
    if (!a || !b) continue;
    const x = a.x + WIDE, y = a.y + HIGH / 2, v = b.y + HIGH / 2, m = (x + b.x) / 2;
    svg.append(draw("path", {d: "M" + x + " " + y + "C" + m + " " + y + " " + m + " " + v + " " + b.x + " " + v}));
  }
  graph.jobs.forEach((job, n) => {
    const {x, y} = places[n];
    const values = Object.entries(job.wildcards).map(([k, v]) => k + "=" + v).join(" ");
    const label = job.rule + (values ? " " + values : "");
    const g = draw("g", {class: job.state});
    const time = job.ended ? span(job.begun, job.ended) : "", most = time ? 12 : 17;
    g.append(draw("title", {}, label + ": " + job.state + (time ? ", " + time : "")));
    g.append(draw("rect", {x, y, width: WIDE, height: HIGH, rx: 5}));
    g.append(draw("text", {x: x + 8, y: y + 16, class: "mark"}, MARKS[job.state] || ""));
    g.append(draw("text", {x: x + 26, y: y + 16}, label.length > most ? label.slice(0, most - 1) + "…" : label));
    if (time) g.append(draw("text", {x: x + WIDE - 6, y: y + 16, class: "time", "text-anchor": "end"}, time));
    svg.append(g);
  });
  at("graph").replaceChildren(svg);
}

// A button that fetches a file of the workflow: a link couldn't show the token.
function fetched(workflow, path) {
  const button = make("button", path, {type: "button", className: "file"});
  button.setAttribute("aria-label", "Download " + path);
  button.dataset.mark = "file " + path;
  button.dataset.workflow = workflow;
  button.dataset.path = path;
  return button;
}

async function download(workflow, path) {
  const parts = path.split("/").map(encodeURIComponent).join("/");
  const headers = {authorization: "Bearer " + sessionStorage.getItem("token")};
  const reply = await fetch("api/v1/workflows/" + encodeURIComponent(workflow) + "/files/" + parts,
    {headers, cache: "no-store", credentials: "omit"});
  if (!reply.ok) throw new Refused(reply.status, path + ": " + (reply.status === 404 ? "it isn't there" : "refused"));
  const a = make("a", undefined, {href: URL.createObjectURL(await reply.blob()), download: path.split("/").pop()});
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 60000);
}

// What nothing but a collecting rule (as `all`) needs: the results. And all jobs with their times.
function results(w, graph) {
  const isNeeded = graph.jobs.map(() => false);
  for (const [from, to] of graph.edges) if (graph.jobs[to] && graph.jobs[to].output.length) isNeeded[from] = true;
  const last = graph.jobs.filter((job, n) => job.state === "succeeded" && !isNeeded[n]);
  const files = last.flatMap(job => job.output);
  at("results-about").textContent = files.length ? "" : "There are none yet.";
  fill(at("results"), files.slice(0, MOST_RESULTS).map(path => {
    const li = make("li");
    li.append(fetched(w.name, path));
    return li;
  }));
  if (files.length > MOST_RESULTS)
    at("results-about").textContent = files.length - MOST_RESULTS + " more: forebay flow list " + w.name;
  const longest = Math.max(1, ...graph.jobs.map(job => job.begun ? (job.ended || Date.now() / 1000) - job.begun : 0));
  fill(at("jobs"), graph.jobs.map(job => {
    const row = make("tr"), time = make("td", span(job.begun, job.ended)), made = make("td");
    const values = Object.entries(job.wildcards).map(([k, v]) => k + "=" + v).join(" ");
    if (job.ended) {
      const share = (job.ended - job.begun) / longest;
      time.prepend(make("meter", undefined, {value: share, min: 0, max: 1, title: "beside the longest job"}));
    }
    if (job.state === "succeeded") made.append(...job.output.map(path => fetched(w.name, path)));
    row.append(make("td", job.rule), make("td", values), make("td", job.state, {className: "state " + job.state}),
      time, made);
    return row;
  }));
}

async function log(path, is_new) {
  if (is_new) { shown.log = -65536; at("log").textContent = ""; }
  const piece = await ask("GET", path + "/log?from=" + shown.log);
  shown.log = piece.next;
  if (!piece.text) return;
  const element = at("log");
  const is_at_end = element.scrollTop + element.clientHeight >= element.scrollHeight - 40;
  element.textContent = (element.textContent + piece.text).slice(-MOST_LOG);
  if (is_at_end) element.scrollTop = element.scrollHeight;
}

async function workflow(where) {
  const w = await ask("GET", "workflows/" + encodeURIComponent(where.workflow));
  document.title = w.name + " – Forebay workflows";
  at("workflow-title").textContent = w.name;
  at("workflow-about").textContent = (w.executor === "slurm" ? "Jobs run in Slurm" : "Jobs run on the service's host") +
    (w.approve.length ? "; approvals are needed for: " + w.approve.join(", ") : "") + ".";
  campaign(w);
  const number = where.run || (w.runs.length ? w.runs[w.runs.length - 1].number : 0);
  const run = w.runs.find(r => r.number === number);
  at("start").disabled = w.state !== "ready" || w.runs.some(r => ["queued", "running", "waiting"].includes(r.state));
  fill(at("runs"), w.runs.slice(-20).reverse().map(r => {
    const li = make("li"), a = make("a", r.number + ": " + r.state, {href: link(w.name, r.number), className: r.state});
    a.dataset.mark = String(r.number);
    if (r.number === number) a.setAttribute("aria-current", "true");
    li.append(a);
    return li;
  }));
  at("run").hidden = !run;
  show("workflow");
  if (!run) return;
  const path = "workflows/" + encodeURIComponent(w.name) + "/runs/" + run.number;
  const is_new = shown.run !== path;
  if (is_new) { shown.run = path; shown.graph = ""; }
  at("run-title").textContent = "Run " + run.number;
  at("run-state").textContent = run.state;
  at("run-state").className = "state " + run.state;
  at("run-message").textContent = run.message + (run.message ? ", " : "") + "begun " +
    new Date(run.begun * 1000).toLocaleString() + ", " + (run.ended ? "took " : "for ") + span(run.begun, run.ended);
  at("cancel").disabled = !["queued", "running", "waiting"].includes(run.state);
  at("cancel").onclick = () => act("The run is being cancelled.", () => ask("POST", path + "/cancel"));
  fill(at("approvals"), run.waits_for.map(rule => {
    const button = make("button", "Approve step " + rule, {type: "button", className: "first"});
    button.dataset.mark = rule;
    button.dataset.rule = rule;
    return button;
  }));
  at("approvals").onclick = event => {
    const rule = event.target.dataset.rule;
    if (rule) act("The step " + rule + " is approved.", () => ask("POST", path + "/approve", {rule}));
  };
  const graph = await ask("GET", path + "/graph");
  // Snakemake counts the steps of an attempt; the jobs are those of the whole run.
  const done = graph.jobs.filter(j => j.state === "succeeded").length;
  at("steps-label").textContent = done + " of " + graph.jobs.length + " jobs are done";
  at("steps").value = graph.jobs.length ? done / graph.jobs.length : 0;
  picture(graph);
  results(w, graph);
  await log(path, is_new);
}

async function act(text, work) {
  try { await work(); say(text, true); } catch (e) { failed(e); return; }
  await look();
}

function leave(text) {
  sessionStorage.removeItem("token");
  at("who").hidden = true;
  shown.run = "";
  say(text);
  show("enter");
  at("token").focus();
}

function failed(e) {
  if (e.status === 401) leave("The token isn't valid, or has expired.");
  else say(e instanceof Refused ? e.message : "The service doesn't answer. The page tries again.");
}

async function look() {
  if (shown.busy) return;
  if (!sessionStorage.getItem("token")) { if (at("enter").hidden) leave(""); return; }
  shown.busy = true;
  try {
    const where = place();
    await (where ? workflow(where) : overview());
    if (at("message").textContent.startsWith("The service doesn't answer")) say("");
  } catch (e) {
    if (e.status === 404 && place()) { location.hash = "#/"; say("There is no such workflow or run."); } else failed(e);
  } finally { shown.busy = false; }
}

at("enter-form").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value.trim());
  at("token").value = "";
  say("");
  look().then(() => at("main").focus());
});
at("leave").addEventListener("click", () => leave("You have signed out."));
at("start").addEventListener("click", () => {
  const key = Array.from(crypto.getRandomValues(new Uint8Array(16)), b => b.toString(16).padStart(2, "0")).join("");
  act("The run is being started.", () =>
    ask("POST", "workflows/" + encodeURIComponent(place().workflow) + "/runs", {}, {"idempotency-key": key}));
});
at("run").addEventListener("click", event => {
  const of = event.target.dataset;
  if (of.path) download(of.workflow, of.path).catch(failed);
});
addEventListener("hashchange", () => { if (!location.hash.startsWith("#/")) return; shown.run = ""; say(""); look(); });
setInterval(() => { if (!document.hidden) look(); }, EVERY);
look();
