// SPDX-License-Identifier: Apache-2.0

// Formats numbers with three digits and a unit.

function digits(v, units) {
  let unit = 0;
  while (unit < units.length - 1 && v >= 999.5) {
    v /= 1000;
    unit++;
  }
  const places = v === 0 || v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2;
  return v.toFixed(places) + units[unit];
}

// rate formats bytes per second.
export function rate(v) {
  return v < 999.5 ? Math.round(v) + " B/s" : digits(v / 1000, [" kB/s", " MB/s", " GB/s", " TB/s"]);
}

// iops formats operations per second.
export function iops(v) {
  return v < 99999.5 ? String(Math.round(v)) : digits(v / 1000, ["k", "M", "G"]);
}

// latency formats nanoseconds.
export function latency(ns) {
  return digits(ns / 1000, [" µs", " ms", " s"]);
}

// short removes zeros after the decimal point.
export function short(text) {
  return text.replace(/\.0+ /, " ");
}

// clock formats seconds since 1970 as local hours, minutes and seconds.
export function clock(seconds) {
  const d = new Date(seconds * 1000);
  return [d.getHours(), d.getMinutes(), d.getSeconds()].map(n => String(n).padStart(2, "0")).join(":");
}

// colour returns the value of a property of the style sheet.
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
