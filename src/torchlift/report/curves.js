// Curves: values on hovering, series on and off, logarithmic axes, zoom; all by mouse, touch and keyboard.

const COLOURS = 8;
const MARGIN = { left: 54, right: 14, top: 30, bottom: 44 };
const NEAR = 40;

class Curves {
  constructor(element) {
    this.data = contentOf(element);
    this.hidden = new Set();
    this.log = { x: this.data.xLog && this.positive("x"), y: this.data.yLog && this.positive("y") };
    this.range = null;
    this.cursor = null;
    this.build(element);
    this.width = 0;
    new ResizeObserver(() => {
      if (this.plot.clientWidth && this.plot.clientWidth !== this.width) this.draw();
    }).observe(this.plot);
  }

  positive(axis) {
    return this.data.series.some((series) => series[axis].some((value) => value > 0));
  }

  build(element) {
    const frame = make("div", { class: "chart" });
    element.prepend(frame);
    const left = make("div", { class: "drawing" }, frame);
    this.plot = make("div", {
      class: "plot", tabindex: "0", role: "application",
      "aria-label": `Curves: ${this.data.title}. ${this.data.y} against ${this.data.x}. ` +
        "Left and right read values, plus and minus zoom, 0 shows all.",
    }, left);
    this.buildTools(left);
    this.buildLegend(make("div", { class: "side" }, frame));
    this.status = make("p", { class: "unseen", role: "status" }, frame);
    this.plot.addEventListener("keydown", (event) => this.onKey(event));
    this.plot.addEventListener("pointermove", (event) => this.onMove(event));
    this.plot.addEventListener("pointerdown", (event) => this.onDown(event));
    this.plot.addEventListener("pointerup", (event) => this.onUp(event));
    this.plot.addEventListener("pointercancel", () => this.endDrag());
    this.plot.addEventListener("pointerleave", () => { if (!this.drag) this.read(null); });
    this.plot.addEventListener("dblclick", () => this.zoomTo(null));
    this.plot.addEventListener("blur", () => this.read(null));
  }

  buildTools(parent) {
    const tools = make("div", { class: "tools", role: "group", "aria-label": `Axes of ${this.data.title}` }, parent);
    for (const axis of ["y", "x"]) {
      if (!this.positive(axis)) continue;
      const button = make("button", { type: "button", class: `log-${axis}`, "aria-pressed": this.log[axis] }, tools, `Log ${axis}`);
      button.addEventListener("click", () => {
        this.log[axis] = !this.log[axis];
        button.setAttribute("aria-pressed", this.log[axis]);
        this.draw();
      });
    }
    const zooms = [["+", "Zoom in", 0.5], ["−", "Zoom out", 2]];
    for (const [sign, words, factor] of zooms) {
      const button = make("button", { type: "button", "aria-label": words, title: words }, tools, sign);
      button.addEventListener("click", () => this.zoomBy(factor));
    }
    this.reset = make("button", { type: "button", class: "reset", disabled: "" }, tools, "Show all");
    this.reset.addEventListener("click", () => this.zoomTo(null));
  }

  buildLegend(parent) {
    this.where = make("p", { class: "where" }, parent, "last value");
    const list = make("ul", { class: "legend" }, parent);
    this.entries = this.data.series.map((series, index) => {
      const item = make("li", { class: `c${series.colour % COLOURS}` }, list);
      const label = make("label", {}, item);
      const box = make("input", { type: "checkbox" }, label);
      box.checked = true;
      box.addEventListener("change", () => {
        if (box.checked) this.hidden.delete(index);
        else this.hidden.add(index);
        this.draw();
      });
      const swatch = make("svg:svg", { viewBox: "0 0 26 12", "aria-hidden": "true" }, label);
      make("svg:path", { d: "M1 6H25", class: series.dashed ? "line dashed" : "line" }, swatch);
      make("svg:path", { d: marker(series.colour, 13, 6), class: "dot" }, swatch);
      make("span", {}, label, series.label);
      return make("span", { class: "value" }, item);
    });
  }

  /** Whether a point can be drawn on these axes. */
  fits(x, y) {
    return x !== null && y !== null && (!this.log.x || x > 0) && (!this.log.y || y > 0);
  }

  *points() {
    for (const [index, series] of this.data.series.entries()) {
      if (this.hidden.has(index)) continue;
      for (let k = 0; k < series.x.length; k++) {
        if (this.fits(series.x[k], series.y[k])) yield [series.x[k], series.y[k], series, k];
      }
    }
  }

  all() {
    return widened([...this.points()].map(([x]) => x), this.log.x, 0.015);
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    this.width = width;
    const height = Math.round(Math.min(380, Math.max(230, width * 0.56)));
    const [low, high] = this.range || this.all();
    if (this.log.x && low <= 0) {
      this.range = null;
      return this.draw();
    }
    const seen = [...this.points()].filter(([x]) => x >= low && x <= high);
    const ys = seen.flatMap(([, y, series, k]) =>
      [y, series.low[k], series.high[k]].filter((each) => each !== null && each !== undefined && this.fits(1, each)));
    const [bottom, top] = widened(ys, this.log.y, 0.06);
    this.x = makeScale(low, high, MARGIN.left, width - MARGIN.right, this.log.x);
    this.y = makeScale(bottom, top, height - MARGIN.bottom, MARGIN.top, this.log.y);
    const svg = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    this.drawAxes(svg, width, height);
    this.drawSeries(svg, width, height);
    this.overlay = make("svg:g", { class: "overlay" }, svg);
    this.height = height;
    this.plot.replaceChildren(svg);
    this.reset.disabled = this.range === null;
    this.places = [...new Set(seen.map(([x]) => x))].sort((a, b) => a - b);
    this.read(this.cursor);
  }

  drawAxes(svg, width, height) {
    const base = height - MARGIN.bottom;
    for (const value of makeTicks(this.y.low, this.y.high, this.log.y, height / 55)) {
      const y = this.y.place(value);
      make("svg:path", { d: `M${MARGIN.left} ${y}H${width - MARGIN.right}`, class: "rule" }, svg);
      make("svg:text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, svg, tickText(value));
    }
    for (const value of makeTicks(this.x.low, this.x.high, this.log.x, width / 90)) {
      const x = this.x.place(value);
      make("svg:path", { d: `M${x} ${base}v5`, class: "axis" }, svg);
      make("svg:text", { x, y: base + 18, "text-anchor": "middle" }, svg, tickText(value));
    }
    make("svg:path", { d: `M${MARGIN.left} ${base}H${width - MARGIN.right}`, class: "axis" }, svg);
    make("svg:text", { x: 0, y: 14, class: "name" }, svg, this.data.y);
    make("svg:text", { x: width - MARGIN.right, y: height - 6, "text-anchor": "end", class: "name" }, svg, this.data.x);
  }

  drawSeries(svg, width, height) {
    const id = `clip-${++Curves.count}`;
    const clip = make("svg:clipPath", { id }, svg);
    make("svg:rect", {
      x: MARGIN.left - 4, y: MARGIN.top - 6, width: width - MARGIN.left - MARGIN.right + 8,
      height: height - MARGIN.top - MARGIN.bottom + 12,
    }, clip);
    const group = make("svg:g", { "clip-path": `url(#${id})` }, svg);
    for (const [index, series] of this.data.series.entries()) {
      if (this.hidden.has(index)) continue;
      const own = make("svg:g", { class: `series c${series.colour % COLOURS}`, "data-series": index }, group);
      if (series.low.length && series.high.length) make("svg:path", { d: this.band(series), class: "band" }, own);
      make("svg:path", { d: this.line(series), class: series.dashed ? "line dashed" : "line" }, own);
      const dots = this.dots(series);
      if (dots) make("svg:path", { d: dots, class: "dot" }, own);
    }
  }

  /** The line, in pieces where values are missing. */
  line(series) {
    let path = "", down = false;
    series.x.forEach((x, k) => {
      const y = series.y[k];
      if (this.fits(x, y)) path += `${down ? "L" : "M"}${this.x.place(x).toFixed(1)} ${this.y.place(y).toFixed(1)}`;
      down = this.fits(x, y);
    });
    return path;
  }

  /** Markers, unless there are so many that they would cover the line. */
  dots(series) {
    const inside = series.x.map((x, k) => k)
      .filter((k) => this.fits(series.x[k], series.y[k]) && series.x[k] >= this.x.low && series.x[k] <= this.x.high);
    if (inside.length * 14 > this.width) return "";
    return inside.map((k) => marker(series.colour, this.x.place(series.x[k]), this.y.place(series.y[k]))).join("");
  }

  band(series) {
    const low = [], high = [];
    series.x.forEach((x, k) => {
      const [a, b] = [series.low[k], series.high[k]];
      if (a === null || b === null || !this.fits(x, b)) return;
      const place = this.x.place(x).toFixed(1);
      low.push(`${place} ${this.y.place(this.fits(x, a) ? a : this.y.low).toFixed(1)}`);
      high.push(`${place} ${this.y.place(b).toFixed(1)}`);
    });
    return low.length ? `M${high.join("L")}L${low.reverse().join("L")}Z` : "";
  }

  /** Show the values at a place; null shows those at the right end. */
  read(x, aloud) {
    this.cursor = x;
    if (!this.overlay) return;
    this.overlay.replaceChildren();
    this.where.textContent = x === null ? "last value" : `${this.data.x}: ${valueText(x)}`;
    if (x !== null) {
      const place = this.x.place(x);
      make("svg:path", { d: `M${place} ${MARGIN.top}V${this.height - MARGIN.bottom}`, class: "cursor" }, this.overlay);
    }
    const said = this.data.series.map((series, index) => {
      const k = this.hidden.has(index) ? -1 : this.pointAt(series, x);
      this.entries[index].textContent = k < 0 ? "" : valueText(series.y[k]);
      if (k < 0) return "";
      if (x !== null) {
        const own = make("svg:g", { class: `c${series.colour % COLOURS}` }, this.overlay);
        make("svg:path", { d: marker(series.colour, this.x.place(series.x[k]), this.y.place(series.y[k])), class: "dot read" }, own);
      }
      return `${series.label} ${valueText(series.y[k])}`;
    });
    if (aloud) this.status.textContent = `${this.where.textContent}. ${said.filter(Boolean).join(", ")}`;
  }

  pointAt(series, x) {
    const usable = series.x.map((each, k) => (this.fits(each, series.y[k]) ? each : null));
    if (x === null) return usable.reduce((best, each, k) => (each !== null && !(each < usable[best]) ? k : best), -1);
    const place = (each) => (each === null ? Infinity : this.x.place(each));
    const k = nearest(usable, place, this.x.place(x));
    return k >= 0 && Math.abs(place(series.x[k]) - this.x.place(x)) <= NEAR ? k : -1;
  }

  position(event) {
    return event.clientX - this.plot.getBoundingClientRect().left;
  }

  onMove(event) {
    if (!this.x || !this.places.length) return;
    const at = this.position(event);
    this.read(this.places[nearest(this.places, this.x.place, at)]);
    if (this.drag === undefined || this.drag === null) return;
    const [a, b] = [this.drag, at].sort((one, other) => one - other);
    make("svg:rect", {
      x: a, width: b - a, y: MARGIN.top, height: this.height - MARGIN.top - MARGIN.bottom, class: "chosen",
    }, this.overlay);
  }

  onDown(event) {
    if (event.pointerType !== "mouse") this.onMove(event);
    if (event.pointerType !== "mouse" || event.button) return;
    this.drag = this.position(event);
    this.plot.setPointerCapture(event.pointerId);
  }

  onUp(event) {
    const from = this.drag, to = this.position(event);
    this.endDrag();
    if (typeof from !== "number" || Math.abs(to - from) < 8) return;
    this.zoomTo([Math.min(from, to), Math.max(from, to)].map((place) => this.x.value(place)));
  }

  endDrag() {
    this.drag = null;
    this.read(this.cursor);
  }

  zoomTo(range) {
    this.range = range;
    this.draw();
  }

  /** Zoom around the cursor or the middle; out of the whole there is nothing to see. */
  zoomBy(factor) {
    const [left, right] = [MARGIN.left, this.width - MARGIN.right];
    const middle = this.cursor === null ? (left + right) / 2 : this.x.place(this.cursor);
    const range = [left, right].map((edge) => this.x.value(middle + (edge - middle) * factor));
    const [low, high] = this.all();
    const whole = range[0] <= low && range[1] >= high;
    this.zoomTo(whole ? null : [Math.max(range[0], low), Math.min(range[1], high)]);
  }

  onKey(event) {
    const last = this.places.length - 1;
    const now = this.cursor === null ? last + 1 : this.places.indexOf(this.cursor);
    const moves = { ArrowLeft: Math.max(now - 1, 0), ArrowRight: Math.min(now + 1, last), Home: 0, End: last };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves && last >= 0) this.read(this.places[moves[event.key]], true);
    else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
    else if (event.key === "-") this.zoomBy(2);
    else if (event.key === "0" || event.key === "Escape") this.zoomTo(null);
    else return;
    event.preventDefault();
  }
}
Curves.count = 0;
