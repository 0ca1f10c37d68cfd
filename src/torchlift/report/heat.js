// Heat maps: the value under the pointer, or under a cursor that the arrow keys move.

class HeatMap {
  constructor(element) {
    this.data = contentOf(element);
    this.cells = element.querySelector(".cells");
    this.reading = element.querySelector(".reading");
    this.cursor = make("div", { class: "cursor", hidden: "" }, this.cells);
    this.at = null;
    this.cells.addEventListener("pointermove", (event) => this.onMove(event));
    this.cells.addEventListener("pointerleave", () => this.read(null));
    this.cells.addEventListener("blur", () => this.read(null));
    this.cells.addEventListener("keydown", (event) => this.onKey(event));
    this.read(null);
  }

  read(at) {
    this.at = at;
    this.cursor.hidden = at === null;
    if (at === null) {
      this.reading.textContent = "Point at a cell, or move with the arrow keys, to read its value.";
      return;
    }
    const [row, column] = at, rows = this.data.rows.length, columns = this.data.columns.length;
    this.cursor.style.left = `${(100 * column) / columns}%`;
    this.cursor.style.top = `${(100 * row) / rows}%`;
    this.cursor.style.width = `${100 / columns}%`;
    this.cursor.style.height = `${100 / rows}%`;
    const value = valueText(this.data.values[row][column]);
    this.reading.textContent = `${this.data.rows[row]}, ${this.data.x} ${valueText(this.data.columns[column])}: ${value}`;
  }

  onMove(event) {
    const box = this.cells.getBoundingClientRect();
    const index = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    this.read([
      index((event.clientY - box.top) / box.height, this.data.rows.length),
      index((event.clientX - box.left) / box.width, this.data.columns.length),
    ]);
  }

  onKey(event) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    const [down, right] = this.at === null ? [0, 0] : moves[event.key];
    const [row, column] = this.at || [0, 0];
    this.read([
      Math.min(this.data.rows.length - 1, Math.max(0, row + down)),
      Math.min(this.data.columns.length - 1, Math.max(0, column + right)),
    ]);
    event.preventDefault();
  }
}
