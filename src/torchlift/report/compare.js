// Two rows of pictures over each other: a border that uncovers one of them, or both in turn.

const TURN = 600; // milliseconds

class Comparison {
  constructor(element) {
    const rows = element.parentElement.querySelectorAll(".strip .images");
    this.rows = [...rows].map((row) => [...row.querySelectorAll("img")]);
    this.under = element.querySelector(".under");
    this.over = element.querySelector(".over");
    this.line = element.querySelector(".line");
    this.stage = element.querySelector(".stage");
    this.border = element.querySelector(".border");
    this.choices = ["left", "right", "which"].map((name) => element.querySelector(`.${name}`));
    this.button = element.querySelector(".flicker");
    for (const choice of this.choices) if (choice) choice.addEventListener("change", () => this.fill());
    this.border.addEventListener("input", () => this.uncover());
    this.button.addEventListener("click", () => this.flicker());
    this.stage.addEventListener("pointerdown", (event) => {
      this.stage.setPointerCapture(event.pointerId);
      this.follow(event);
    });
    this.stage.addEventListener("pointermove", (event) => { if (event.buttons) this.follow(event); });
    this.fill();
    this.uncover();
  }

  /** The left row lies on top, cut at the border; the right one below. */
  fill() {
    const [left, right, which] = this.choices.map((choice) => (choice ? Number(choice.value) : 0));
    for (const [image, row] of [[this.over, left], [this.under, right]]) {
      image.src = this.rows[row][which].src;
      image.alt = this.rows[row][which].alt;
    }
  }

  uncover() {
    const share = Number(this.border.value);
    this.over.style.clipPath = `inset(0 ${100 - share}% 0 0)`;
    this.line.style.left = `${share}%`;
    this.border.setAttribute("aria-valuetext", `${share} percent of ${this.words(0)}, the rest ${this.words(1)}`);
  }

  words(side) {
    return this.choices[side].selectedOptions[0].textContent;
  }

  follow(event) {
    const box = this.stage.getBoundingClientRect();
    this.border.value = Math.round((100 * (event.clientX - box.left)) / box.width);
    this.uncover();
  }

  flicker() {
    const on = this.timer === undefined;
    this.button.setAttribute("aria-pressed", on);
    this.stage.classList.toggle("flickering", on);
    if (on) {
      this.over.style.clipPath = "none";
      this.timer = setInterval(() => { this.over.hidden = !this.over.hidden; }, TURN);
      return;
    }
    clearInterval(this.timer);
    this.timer = undefined;
    this.over.hidden = false;
    this.uncover();
  }
}
