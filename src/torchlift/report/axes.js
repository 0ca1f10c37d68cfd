"use strict";
// Scales, ticks and numbers.

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** Maps [low, high], linear or logarithmic, to [from, to]. */
function makeScale(low, high, from, to, log) {
  const bend = log ? Math.log10 : (value) => value;
  const unbend = log ? (value) => 10 ** value : (value) => value;
  const a = bend(low), b = bend(high);
  return {
    low, high, log,
    place: (value) => from + ((bend(value) - a) / (b - a || 1)) * (to - from),
    value: (place) => unbend(a + ((place - from) / (to - from || 1)) * (b - a)),
  };
}

/** The range of values with some room on both sides. */
function widened(values, log, room) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return log ? [1, 10] : [0, 1];
  if (low === high) return log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  if (log) {
    const factor = (high / low) ** room;
    return [low / factor, high * factor];
  }
  return [low - room * (high - low), high + room * (high - low)];
}

/** About `count` round numbers between low and high. */
function makeTicks(low, high, log, count) {
  if (log) {
    const found = logTicks(low, high, count);
    if (found.length > 2) return found;
  }
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(k * step);
  return found;
}

/** Powers of ten and round numbers between them: as many as fit. */
function logTicks(low, high, count) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const choices = [[1, [1, 2, 5]], [1, [1, 3]], [1, [1]], [2, [1]], [3, [1]], [5, [1]], [10, [1]], [20, [1]]];
  for (const [every, digits] of choices) {
    const found = [];
    for (let power = first; power <= last; power++) {
      if (power % every) continue;
      found.push(...digits.map((digit) => digit * 10 ** power).filter((each) => each >= low && each <= high));
    }
    if (found.length <= count + 1) return found;
  }
  return [];
}

/** A number at a tick: round, short, powers of ten raised. */
function tickText(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-4 && size < 1e5) return String(parseFloat(value.toPrecision(6))).replace("-", "−");
  const [digits, power] = value.toExponential(5).split("e");
  const factor = parseFloat(digits);
  const raised = (power[0] === "-" ? "⁻" : "") + [...power.slice(1)].map((digit) => SUPERSCRIPTS[digit]).join("");
  return (factor === 1 ? "" : factor === -1 ? "−" : `${factor}·`.replace("-", "−")) + `10${raised}`;
}

/** A value that was read off. */
function valueText(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value).replace("-", "−");
  if (size >= 1e-3 && size < 99995) return value.toPrecision(4).replace("-", "−");
  return value.toExponential(2).replace("e+", "e").replaceAll("-", "−");
}
