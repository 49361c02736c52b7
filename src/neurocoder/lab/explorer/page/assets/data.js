"use strict";
/* What Python put into the page: the model, the test digits, and figures measured on the test set. */
NC.data = (() => {
  function bytes(text) {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  }

  /** { shape, data } with float32 numbers as float64. */
  function tensor(packed) {
    const view = new DataView(bytes(packed.data).buffer);
    const data = Float64Array.from({ length: view.byteLength / 4 }, (_, i) => view.getFloat32(4 * i, true));
    return { shape: packed.shape, data };
  }

  function load(text) {
    const given = JSON.parse(text);
    const model = { program: given.program, tensors: {}, side: given.side };
    for (const [name, packed] of Object.entries(given.tensors)) model.tensors[name] = tensor(packed);
    model.keys = NC.equations.keys(model);
    model.inputs = model.tensors["memory.U"].shape[1];
    model.classes = model.tensors["memory.V"].shape[1];
    model.components = model.program.steps * model.program.heads;
    const [images, labels] = [bytes(given.digits.images), bytes(given.digits.labels)];
    const digits = given.digits.places.map((place, i) => ({
      place,
      label: labels[i],
      pixels: Float64Array.from(images.subarray(784 * i, 784 * (i + 1))),
    }));
    const [count, patterns, slots] = given.centres.shape;
    const centres = tensor(given.centres).data;
    const tree = {
      paths: given.paths,
      centres: Array.from({ length: count }, (_, n) =>
        Array.from({ length: patterns }, (_, which) =>
          centres.subarray((n * patterns + which) * slots, (n * patterns + which + 1) * slots),
        ),
      ),
    };
    return { model, digits, tree, average: tensor(given.average).data, given };
  }

  return { bytes, load, tensor };
})();
