// SPDX-License-Identifier: Apache-2.0

import { iops, latency, rate } from "./format.js";
import { key } from "./past.js";

const STAGES = ["queue", "send", "peer", "finish", "device", "total"];
const PERCENTILES = [["p50", "p50_ns"], ["p99", "p99_ns"], ["max", "max_ns"]];

// set changes a cell only if its content differs.
function set(td, text, kind = "") {
  if (td.textContent !== text) {
    td.textContent = text;
  }
  if (td.className !== kind) {
    td.className = kind;
  }
  return td;
}

function cell(text, kind) {
  return set(document.createElement("td"), text, kind);
}

function row(cells) {
  const tr = document.createElement("tr");
  tr.append(...cells);
  return tr;
}

// slowest returns the largest p99 of a session's operations.
function slowest(session) {
  const all = (session.latencies ?? []).filter(l => l.stage === "total").map(l => l.p99_ns);
  return all.length ? latency(Math.max(...all)) : "–";
}

function counted(count) {
  return count.delta ? [`${count.total} (+${count.delta})`, "number bad"] : [String(count.total), "number"];
}

// Columns after the name: header, and a function that returns a cell's text and CSS class.
const COLUMNS = [
  ["State", s => [s.state.replaceAll("_", " "), s.state === "live" ? "good" : "bad"]],
  ["Device", s => [s.device ? `/dev/${s.device} (${s.mode})` : "served"]],
  ["Peer", s => [s.peer]],
  ["Read", s => [rate(s.read.bytes_per_second), "number"]],
  ["Write", s => [rate(s.write.bytes_per_second), "number"]],
  ["IOPS", s => [iops(s.read.ops_per_second + s.write.ops_per_second), "number"]],
  ["In flight", s => [`${s.inflight}/${s.depth}`, "number"]],
  ["p99", s => [slowest(s), "number"]],
  ["Errors", s => counted(s.errors)],
  ["CRC", s => counted(s.crc_errors)],
  ["Reconnects", s => counted(s.reconnects)],
];

// SessionTable has a row per session. Clicking its name picks the session, or releases it. A row is
// kept as long as its session, so that a new sample does not interrupt a click or move the focus.
export class SessionTable {
  constructor(table, onPick) {
    this.table = table;
    this.onPick = onPick;
    this.rows = new Map();
    const head = table.createTHead().insertRow();
    for (const name of ["Volume", ...COLUMNS.map(([name]) => name)]) {
      const th = document.createElement("th");
      th.textContent = name;
      head.append(th);
    }
    this.body = table.createTBody();
  }

  draw(sessions, picked) {
    this.table.hidden = sessions.length === 0;
    const names = sessions.map(key);
    for (const [name, tr] of this.rows) {
      if (!names.includes(name)) {
        tr.remove();
        this.rows.delete(name);
      }
    }
    sessions.forEach((session, i) => {
      const name = names[i];
      const tr = this.rows.get(name) ?? this.add(name, session);
      if (this.body.rows[i] !== tr) {
        this.body.insertBefore(tr, this.body.rows[i] ?? null);
      }
      tr.querySelector("button").setAttribute("aria-pressed", String(picked === name));
      COLUMNS.forEach(([, value], column) => set(tr.cells[column + 1], ...value(session)));
    });
  }

  add(name, session) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = session.name;
    button.addEventListener("click", () => this.onPick(name));
    const first = document.createElement("td");
    first.append(button);
    const tr = row([first, ...COLUMNS.map(([label]) => {
      const td = cell("");
      td.dataset.label = label;
      return td;
    })]);
    this.rows.set(name, tr);
    return tr;
  }
}

// drawStages fills an element with a session's latencies: a table per operation, a row per stage.
export function drawStages(element, session) {
  const ops = [...new Set(session.latencies?.map(l => l.op))];
  const tables = ops.map(op => {
    const byStage = new Map(session.latencies.filter(l => l.op === op).map(l => [l.stage, l]));
    const table = document.createElement("table");
    table.createCaption().textContent = `${op}, ${byStage.get("total")?.count ?? 0} bios`;
    table.createTHead().append(row(["", ...PERCENTILES.map(([name]) => name)].map(name => cell(name, "number"))));
    table.createTBody().append(...STAGES.map(stage => {
      const l = byStage.get(stage);
      return row([cell(stage), ...PERCENTILES.map(([, field]) => cell(l ? latency(l[field]) : "–", "number"))]);
    }));
    return table;
  });
  element.replaceChildren(...tables.length ? tables : ["No bio ended in the last interval."]);
}
