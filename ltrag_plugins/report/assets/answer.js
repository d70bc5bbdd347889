// One question with the answers of all methods.
const VERDICTS = {
  right: ['✓', 'right'], wrong: ['✗', 'wrong'], failed: ['!', 'failed'], none: ['·', 'not answered'],
};
const verdictOf = (answer) =>
  !answer ? 'none' : answer.e !== undefined ? 'failed' : answer.ok ? 'right' : 'wrong';

function verdict(answer, cell, worded) {
  const kind = verdictOf(answer);
  const [sign, word] = VERDICTS[kind];
  const mark = make('span', `verdict ${kind}`, worded ? `${sign} ${word}` : sign);
  if (!worded) {
    mark.title = `${cell}: ${word}`;
    mark.setAttribute('role', 'img');
    mark.setAttribute('aria-label', mark.title);
  }
  return mark;
}

/** A question that shows its answers when it is opened. */
function questionItem(place, index) {
  const question = index.questions[place];
  const marks = make('span', 'marks', ...index.cells.map((cell, i) => verdict(question.r[i], cell)));
  const item = make('details', 'question', make('summary', '', said('span', 'asked', question.q), marks));
  item.addEventListener('toggle', () => {
    if (item.children.length === 1) item.append(body(question, place, index));
  });
  return item;
}

function body(question, place, index) {
  const accepted = make('p', 'accepted', 'accepted: ');
  question.a.forEach((text, i) => accepted.append(i ? ' · ' : '', said('b', '', text)));
  const found = make('div', 'body', accepted);
  index.cells.forEach((cell, i) => {
    if (question.r[i]) found.append(answerCard(question, place, i, index));
  });
  return found;
}

function answerCard(question, place, i, index) {
  const answer = question.r[i];
  const scores = index.metrics.map((name, k) => `${name} ${number(answer.s[k])}`).join(' · ');
  const head = make('header', '', verdict(answer, '', true), said('b', '', index.cells[i]),
    make('small', '', scores));
  const card = make('article', 'answer', head);
  card.append(answer.p ? said('p', 'prediction', answer.p) : make('p', 'prediction empty', 'no text'));
  if (answer.e !== undefined) card.append(said('p', 'line error', answer.e));
  if (answer.d) card.append(decisionLine(answer.d));
  card.append(costLine(answer));
  if (answer.g) card.append(foundPassages(answer.g));
  if (answer.n !== undefined) card.append(trace(question, place, i, answer.n));
  return card;
}

function decisionLine(decision) {
  const told = `score ${number(decision.s)}, P(direct answer fails) ${number(decision.p)}`;
  const line = make('p', 'line', make('b', '', decision.on ? 'gate: retrieve' : 'gate: answer directly'),
    ' – ', said('span', '', decision.why || told));
  const signals = Object.entries(decision.x).map(([name, value]) => `${name} ${number(value)}`);
  if (signals.length) line.append(make('small', '', ` ${signals.join(' · ')}`));
  return line;
}

function costLine(answer) {
  const [calls, searches, tokens, ms] = answer.c;
  const parts = [many(calls, 'call'), many(searches, 'search')];
  if (tokens !== null) parts.push(many(tokens, 'token'));
  parts.push(`${number(ms)} ms`);
  if (answer.m !== undefined) parts.push(answer.m);
  if (answer.u !== undefined) parts.push(`uncertainty ${number(answer.u)} of 1`);
  return make('p', 'line', parts.join(' · '));
}

function foundPassages(rows) {
  const details = make('details', 'line', make('summary', '', many(rows.length, 'passage')));
  details.append(passageList(rows));
  return details;
}

function trace(question, place, i, steps) {
  if (steps === 0) return make('p', 'line', 'no steps');
  if (question.t === undefined) return make('p', 'line', `${many(steps, 'step')}, not in this page`);
  return traceButton(question, place, i, steps);
}
