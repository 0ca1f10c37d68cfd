// Parts that drawings share.

/** A new element, of SVG if it is named so; text goes in as text, never as HTML. */
function make(name, attributes, parent, text) {
  const drawn = name.startsWith("svg:");
  const element = drawn
    ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4))
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.appendChild(element);
  return element;
}

/** The JSON that stands in front of a drawing. */
function contentOf(element) {
  return JSON.parse(element.querySelector("script[type='application/json']").textContent);
}

/** The index of the number in a sorted or unsorted list that is nearest on the screen. */
function nearest(values, place, wanted) {
  let best = -1, distance = Infinity;
  for (let index = 0; index < values.length; index++) {
    const away = Math.abs(place(values[index]) - wanted);
    if (away < distance) {
      best = index;
      distance = away;
    }
  }
  return best;
}

const SHAPES = [
  (x, y) => `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0`,
  (x, y) => `M${x - 2.7} ${y - 2.7}h5.4v5.4h-5.4z`,
  (x, y) => `M${x} ${y - 3.6}l3.6 6.2h-7.2z`,
  (x, y) => `M${x} ${y - 3.8}l3.8 3.8l-3.8 3.8l-3.8 -3.8z`,
];

/** A marker whose shape goes with its colour, for those who see few colours. */
function marker(colour, x, y) {
  return SHAPES[colour % SHAPES.length](x, y);
}
