/* page.js - sends questions to /v1/chat/completions and shows what comes: the answer as it is written,
 * the passages that were used, what came from the cache and what it cost. Text of documents, answers
 * and errors is only ever set as text, never as markup. The chat is kept for this tab, until it is
 * closed or a new chat begins. */
'use strict';
const $ = id => document.getElementById(id);
const WELCOME = $('empty').textContent, ABOUT_MS = 10000, KINDS = ['exact', 'reused', 'recomputed', 'new'];
const MEANING = {exact: 'exact from the cache', reused: 'reused', recomputed: 'recomputed', new: 'new'};
const KEPT = 'tessera-serve-chat', KEPT_MAX = 1000000; /* characters; browsers allow 5 MB or more */
const CUT_OFF = {text: 'The answer was cut off.', kind: 'numbers'};
/* Between two reports to screen readers; names in one, and names that the server tells at most. */
const SAY_MS = 5000, NAMES_MAX = 3, TOLD_MAX = 64;
let token = '', model = '', turns = [], cut = false, chat = 0, running = null;

/* ---- the token: in the fragment of the address, which is never sent ---- */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get('token');
  if (given) {
    sessionStorage.setItem('tessera-serve-token', given);
    history.replaceState(null, '', location.pathname);
  }
  token = sessionStorage.getItem('tessera-serve-token') || '';
}
const headers = more => Object.assign(token ? {Authorization: 'Bearer ' + token} : {}, more);
function askToken(wanted) {
  const shown = !$('login').hidden;
  $('login').hidden = !wanted;
  $('wrong').hidden = !token;
  if (!wanted) return;
  model = '';
  $('about').textContent = 'token needed';
  if (!shown) $('token').focus();
}

/* ---- pieces of the page ---- */
function make(name, parent, className, text) {
  const e = document.createElement(name);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  if (parent) parent.append(e);
  return e;
}
const seconds = v => v < 0.0995 ? (v * 1000).toFixed(0) + ' ms' : v < 9.95 ? v.toFixed(2) + ' s' : v.toFixed(0) + ' s';
const count = (n, what) => n.toLocaleString('en') + ' ' + what + (n === 1 ? '' : 's');
function state(text) {
  if ($('state').textContent !== text) $('state').textContent = text;
}
/* Keeps the end in view for a reader who is at the end. */
function following(change) {
  const m = document.querySelector('main'), atEnd = m.scrollHeight - m.scrollTop - m.clientHeight < 80;
  change();
  if (atEnd) m.scrollTop = m.scrollHeight;
}

function showTokens(parent, tokens) {
  const all = KINDS.reduce((sum, k) => sum + (tokens[k] || 0), 0);
  if (!all) return;
  const words = KINDS.filter(k => tokens[k]).map(k => tokens[k].toLocaleString('en') + ' ' + MEANING[k]);
  const bar = make('div', parent, 'bar');
  bar.setAttribute('role', 'img');
  bar.setAttribute('aria-label', 'Prompt of ' + count(all, 'token') + ': ' + words.join(', '));
  const list = make('ul', parent, 'legend');
  for (const k of KINDS) {
    if (!tokens[k]) continue;
    make('span', bar, k).style.flexGrow = tokens[k];
    const item = make('li', list);
    make('i', item, k);
    item.append(tokens[k].toLocaleString('en') + ' ' + MEANING[k]);
  }
}

function showDocuments(parent, about) {
  const documents = about.documents || [];
  if (!documents.length) {
    if (about.documents_searched)
      make('p', parent, 'numbers', 'No document was found for this question: the model answered from what it has learned.');
    return;
  }
  const box = make('details', parent);
  const names = [...new Set(documents.map(d => d.name || 'a document of the request'))];
  make('summary', box, '', 'From ' + count(documents.length, 'passage') + ': ' + names.join(', '));
  for (const d of documents) {
    const one = make('details', box);
    const where = d.passages > 1 ? ', passage ' + d.passage + ' of ' + d.passages : '';
    make('summary', one, '', (d.name || 'a document of the request') + where);
    make('pre', one, '', d.text || '(text of the request)').tabIndex = 0;
  }
}

/* Whether stored text was read again although it might have been reused: the gate was not sure. */
const wasRefused = about => about.mode === 'auto' && about.exact && about.tokens && about.tokens.recomputed > 0 && !about.tokens.reused;

/* What it cost, in words: the time, what a full read takes, and how far the answer can be trusted. */
function showCost(side, about, full) {
  const p = make('p', side.box, 'numbers');
  const first = about.seconds && about.seconds.first_token != null ? about.seconds.first_token : side.first;
  side.first = first;
  if (first != null) {
    p.append('first token after ');
    make('b', p, '', seconds(first));
  }
  const read = about.seconds && about.seconds.full_read_estimate;
  if (!full && read && first) {
    p.append('; a full read takes about ' + seconds(read));
    if (read / first >= 1.05) {
      p.append(', ');
      make('b', p, '', (read / first).toFixed(1) + 'x faster');
    }
  }
  if (!full && about.trust) p.append('; ' + about.trust);
  if (!full && wasRefused(about)) p.append('; read in full, because with reuse the answer might have been another one');
  if (about.tokens) showTokens(side.box, about.tokens);
}

/* ---- while a prompt is read ---- */
function readingText(p) {
  const names = (p.documents || []).map(n => n || 'a document of the request'), n = names.length - NAMES_MAX;
  const more = n <= 0 ? '' : names.length < TOLD_MAX ? ' and ' + count(n, 'other') : ' and many others';
  const what = names.length ? names.slice(0, NAMES_MAX).join(', ') + more : 'the question';
  const left = p.seconds_left == null ? '' : ', about ' +
    (p.seconds_left < 90 ? Math.max(1, Math.round(p.seconds_left)) + ' s left' : Math.round(p.seconds_left / 60) + ' min left');
  return 'Reading ' + what + ': ' + (p.tokens_read || 0).toLocaleString('en') + ' of ' + count(p.tokens || 0, 'token') + left;
}

/* In the answer's place until its first token; `p` null: no more. Screen readers are told by an element
 * outside of the log, which is busy, and not about every change. */
function showReading(side, p) {
  if (!p) {
    if (side.reading) side.reading.remove();
    side.reading = null;
    $('told').textContent = '';
    return;
  }
  const text = readingText(p), now = performance.now();
  if (!side.reading) {
    side.reading = make('p', null, 'reading soft');
    side.reading.setAttribute('aria-live', 'off');
    side.said.before(side.reading);
    side.told = -Infinity;
  }
  following(() => { side.reading.textContent = text; });
  if (now - side.told < SAY_MS) return;
  side.told = now;
  $('told').textContent = text;
}

/* ---- Markdown of answers: code and bold become nodes with text; all else stays as it was written ---- */
const FENCE = /^(\s*)(`{3,}|~{3,})([^`]*)$/, CODE_SAID_MS = 2000;
/* Code `...` or bold **...** within a line, up to 500 characters; 2**3**4 is neither. */
const INLINE = /(`+)([^`](?:.{0,500}?[^`])??)\1(?!`)|\B\*\*([^\s*](?:.{0,500}?[^\s*])??)\*\*\B/g;

/* A fence that is not closed, or not yet, goes to the end. */
function blocksOf(text) {
  const blocks = [];
  let lines = [], open = null;
  const end = () => {
    const block = {code: !!open, language: open ? open[3].trim() : '', text: lines.join('\n')};
    if (!open) block.text = block.text.replace(/^\n+|\n+$/g, '');
    if (open || block.text) blocks.push(block);
    lines = [];
  };
  for (const line of text.split('\n')) {
    const fence = FENCE.exec(line);
    if (open ? fence && fence[2].startsWith(open[2]) && !fence[3].trim() : fence) {
      end();
      open = open ? null : fence;
    } else lines.push(open && line.startsWith(open[1]) ? line.slice(open[1].length) : line);
  }
  if (open || lines.length) end();
  return blocks;
}

function fillText(parent, text) {
  let at = 0;
  for (const m of text.matchAll(INLINE)) {
    parent.append(text.slice(at, m.index));
    if (m[1]) make('code', parent, '', m[2].replace(/^ (.*) $/, '$1'));
    else fillText(make('strong', parent), m[3]);
    at = m.index + m[0].length;
  }
  parent.append(text.slice(at));
}

/* Where there is no clipboard, as on pages that are neither HTTPS nor local, the code is selected. */
async function copy(code, button) {
  let done = 'Copied';
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch (e) {
    getSelection().selectAllChildren(code);
    done = 'Selected';
  }
  button.textContent = $('told').textContent = done;
  setTimeout(() => {
    button.textContent = 'Copy';
    if ($('told').textContent === done) $('told').textContent = '';
  }, CODE_SAID_MS);
}

function newBlock(parent, block) {
  if (!block.code) return make('p', parent);
  const box = make('div', parent, 'code'), top = make('div', box, 'row'), code = make('code', make('pre', box));
  make('span', top, 'soft', block.language);
  const button = make('button', top, 'copy', 'Copy');
  button.type = 'button';
  button.title = 'Copy the code';
  button.addEventListener('click', () => copy(code, button));
  code.parentElement.tabIndex = 0;
  return box;
}

/* Only what has changed: who reads, selects or copies what is above is not disturbed. */
function showSaid(side) {
  const blocks = blocksOf(side.text), old = side.blocks;
  blocks.forEach((block, i) => {
    if (old[i] && old[i].code === block.code && old[i].language === block.language) {
      if (old[i].text === block.text) return;
    } else {
      while (side.said.children[i]) side.said.lastChild.remove();
      old.length = i;
      newBlock(side.said, block);
    }
    const node = side.said.children[i];
    if (block.code) node.querySelector('code').textContent = block.text;
    else {
      node.textContent = '';
      fillText(node, block.text);
    }
  });
  while (side.said.children[blocks.length]) side.said.lastChild.remove();
  side.blocks = blocks;
}

/* ---- one answer ---- */
/* The answer of a turn, {asked, said, about, first, note, ended}: what is kept of it. */
function newSide(parent, title, turn = {}) {
  const box = make('div', parent, 'side writing');
  if (title) make('h2', box, '', title);
  return {box, turn, said: make('div', box, 'said'), text: '', blocks: [], first: null, about: null, ended: '', reading: null};
}
function showNote(side, text, kind) {
  let p;
  following(() => { p = make('p', side.box, kind, text); });
  side.turn.note = {text, kind};
  return p;
}
const fail = (side, text) => showNote(side, text, 'problem').setAttribute('role', 'alert');

/* Events of the stream, one object each. */
async function* events(body) {
  const reader = body.getReader(), decoder = new TextDecoder();
  let buffer = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    buffer += decoder.decode(value, {stream: true});
    for (let at; (at = buffer.search(/\r?\n\r?\n/)) >= 0;) {
      const event = buffer.slice(0, at);
      buffer = buffer.slice(at).replace(/^\r?\n\r?\n/, '');
      const data = event.split(/\r?\n/).filter(l => l.startsWith('data:')).map(l => l.slice(5)).join('\n').trim();
      if (data === '[DONE]') return;
      if (data) yield JSON.parse(data);
    }
  }
}

function take(side, event, start) {
  if (event.error) throw new Error(event.error.message || 'the server failed');
  const choice = event.choices && event.choices[0];
  const more = choice && choice.delta && choice.delta.content;
  if (event.tessera && event.tessera.progress) showReading(side, event.tessera.progress);
  else if (event.tessera) side.about = event.tessera;
  if (choice && choice.finish_reason) side.ended = choice.finish_reason;
  if (!more) return;
  if (side.first === null) side.first = (performance.now() - start) / 1000;
  if (side.reading) showReading(side, null);
  side.text += more;
  side.turn.said = side.text;
  following(() => { showSaid(side); });
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  return new Error(body && body.error && body.error.message || 'the server answered ' + response.status);
}

/* Whether the answer came to its end. */
async function write(side, messages, tessera) {
  const start = performance.now();
  const body = {model, messages, stream: true, temperature: 0, tessera: Object.assign({progress: true}, tessera),
    stream_options: {include_usage: true}};
  try {
    const response = await fetch('/v1/chat/completions', {
      method: 'POST', signal: running.signal, headers: headers({'Content-Type': 'application/json'}),
      body: JSON.stringify(body)});
    if (response.status === 401) askToken(true);
    if (!response.ok) throw await refusal(response);
    for await (const event of events(response.body)) take(side, event, start);
    state('');
    if (!side.ended) throw new TypeError();
    side.turn.note = null;
    if (side.ended === 'length') showNote(side, 'ended at its limit of length', 'numbers');
    return true;
  } catch (e) {
    if (running.signal.aborted) showNote(side, 'stopped', 'numbers');
    else if (e instanceof TypeError) {
      state('no connection');
      fail(side, 'The server is gone. What it wrote so far stays; ask again when it is back.');
      side.turn.note = CUT_OFF; /* a page that is left ends here, too */
    } else fail(side, e.message);
    return false;
  } finally {
    showReading(side, null);
    side.box.classList.remove('writing');
  }
}

function busy(on) {
  $('send').disabled = on;
  $('stop').hidden = !on;
  $('talk').setAttribute('aria-busy', String(on));
  document.querySelectorAll('.compare').forEach(b => { b.disabled = on; });
  if (on) running = new AbortController();
}

async function compare(sides, side, messages, button) {
  if ($('send').disabled) return;
  busy(true);
  button.parentElement.remove();
  side.box.prepend(make('h2', null, '', 'With the cache'));
  const full = newSide(sides, 'Full read, without the cache');
  const ended = await write(full, messages, {mode: 'exact', cache: false});
  if (full.about) showCost(full, full.about, true);
  if (ended) {
    const p = make('p', null, 'numbers');
    sides.after(p);
    p.append(side.text === full.text ? 'The same answer' : 'Not the same answer');
    if (side.first && full.first) {
      p.append('; the first token was ');
      make('b', p, '', (full.first / side.first).toFixed(1) + 'x');
      p.append(' faster with the cache');
    }
  }
  busy(false);
  $('question').focus();
}

/* What the model sees of these turns. */
const messagesOf = some => some.filter(t => t.said).flatMap(t => [{role: 'user', content: t.asked}, {role: 'assistant', content: t.said}]);

function newCard(turn) {
  $('empty').hidden = true;
  make('h2', $('talk'), 'unseen', 'You asked');
  make('div', $('talk'), 'question', turn.asked);
  const card = make('article', $('talk'), 'answer');
  card.setAttribute('aria-label', 'Answer');
  const sides = make('div', card, 'sides');
  return {card, sides, side: newSide(sides, '', turn)};
}

/* Below an answer that has ended, or that a tab had kept. */
function showEnd({card, sides, side}, messages) {
  if (side.about) {
    showCost(side, side.about, false);
    showDocuments(card, side.about);
  }
  if (!side.turn.ended) return;
  const row = make('div', card, 'row'), button = make('button', row, 'compare', 'Compare with a full read');
  button.type = 'button';
  button.addEventListener('click', () => compare(sides, side, messages, button));
}

async function ask(text) {
  const mode = $('mode').value, mine = chat, messages = messagesOf(turns).concat({role: 'user', content: text});
  const turn = {asked: text, said: '', note: CUT_OFF};
  busy(true);
  turns.push(turn);
  keep();
  const made = newCard(turn), side = made.side;
  made.card.scrollIntoView({block: 'end'});
  turn.ended = await write(side, messages, {mode});
  turn.about = side.about;
  following(() => {
    showEnd(made, messages);
    if (!side.text && !turn.ended && mine === chat) $('question').value = text;
  });
  turn.first = side.first;
  keep();
  busy(false);
  $('question').focus();
}

/* ---- the chat in this tab: its turns, and nothing that opens the server ---- */
function keep() {
  const some = turns.filter((t, i) => t.said || i === turns.length - 1);
  const text = from => JSON.stringify({cut: cut || from > 0, turns: some.slice(from)});
  let from = 0;
  while (from < some.length && text(from).length > KEPT_MAX) from++;
  try {
    if (from < some.length) sessionStorage.setItem(KEPT, text(from));
    else sessionStorage.removeItem(KEPT);
  } catch (e) {
    sessionStorage.removeItem(KEPT); /* no room: nothing rather than an older chat */
  }
}

function restore(kept) {
  cut = kept.cut;
  if (cut) make('p', $('talk'), 'soft cut', 'The chat was too long to be kept whole: earlier questions are gone, for the model, too.');
  for (const turn of kept.turns) {
    if (!turn.said) {
      $('question').value = turn.asked;
      continue;
    }
    const made = newCard(turn), side = made.side, messages = messagesOf(turns).concat({role: 'user', content: turn.asked});
    Object.assign(side, {text: turn.said, about: turn.about, first: turn.first});
    side.box.classList.remove('writing');
    showSaid(side);
    if (turn.note) showNote(side, turn.note.text, turn.note.kind);
    showEnd(made, messages);
    turns.push(turn);
  }
}

function clear() {
  turns = [];
  cut = false;
  chat++;
  sessionStorage.removeItem(KEPT);
  for (const e of [...$('talk').children]) if (e.id !== 'empty') e.remove();
  $('empty').hidden = false;
}

function takeChat() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEPT));
    if (kept) restore(kept);
  } catch (e) {
    clear(); /* of another version */
  }
  document.querySelector('main').scrollTop = 1e9;
}
addEventListener('pagehide', keep);

/* ---- the form ---- */
$('ask').addEventListener('submit', e => {
  e.preventDefault();
  const text = $('question').value.trim();
  if (!text || $('send').disabled) return;
  $('question').value = '';
  ask(text);
});
$('question').addEventListener('keydown', e => {
  if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    $('ask').requestSubmit();
  }
});
document.addEventListener('keydown', e => { if (e.key === 'Escape' && running) running.abort(); });
$('stop').addEventListener('click', () => running && running.abort());
$('clear').addEventListener('click', () => {
  if (running) running.abort();
  clear();
  $('question').focus();
});
$('login').addEventListener('submit', e => {
  e.preventDefault();
  token = $('token').value.trim();
  sessionStorage.setItem('tessera-serve-token', token);
  about();
});

/* ---- what the server has ---- */
async function about() {
  try {
    const response = await fetch('/tessera/status', {headers: headers(), cache: 'no-store'});
    askToken(response.status === 401);
    state('');
    if (response.status === 401) return;
    if (!response.ok) {
      $('about').textContent = (await refusal(response)).message;
      return;
    }
    const s = await response.json();
    model = s.model;
    const d = s.documents;
    $('empty').textContent = d ? WELCOME : 'Ask anything. This server has no documents: tessera serve --docs=FOLDER gives it some.';
    $('question').placeholder = d ? 'Ask about your documents' : 'Ask a question';
    $('about').textContent = s.model + (d ? ', ' + count(d.files, 'document') + ' in ' + count(d.passages, 'passage') : ', no documents');
  } catch (e) {
    state('no connection');
    if (!model) $('about').textContent = '';
  }
}
takeToken();
takeChat();
about();
setInterval(() => { if (!document.hidden) about(); }, ABOUT_MS);
$('question').focus();
