// Vectors that a user drops on the live page.
"use strict";

// The rows of a .npy file (format 1 to 3) of float32 or float64.
explorer.readNpy = (buffer) => {
  const bytes = new Uint8Array(buffer);
  const view = new DataView(buffer);
  const magic = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59];
  if (!magic.every((byte, place) => bytes[place] === byte)) throw new explorer.Refused("Not a .npy file. Write one with numpy.save.");
  const wide = bytes[6] > 1;
  const length = wide ? view.getUint32(8, true) : view.getUint16(8, true);
  const begin = (wide ? 12 : 10) + length;
  const head = new TextDecoder("latin1").decode(bytes.subarray(wide ? 12 : 10, begin));
  const kind = (/'descr': '([^']*)'/.exec(head) || [])[1];
  const shape = ((/'shape': \(([^)]*)\)/.exec(head) || [])[1] || "").split(",").map((one) => one.trim()).filter(Boolean).map(Number);
  const size = { "<f4": 4, "<f8": 8 }[kind];
  if (!size || /'fortran_order': True/.test(head) || shape.length < 1 || shape.length > 2) {
    throw new explorer.Refused("The file must hold a vector, or one in each row, in float32 or float64: numpy.save(file, x.astype('float32')).");
  }
  const [count, width] = shape.length === 2 ? shape : [1, shape[0]];
  if (begin + count * width * size > buffer.byteLength) throw new explorer.Refused("The .npy file is cut short.");
  const read = size === 4 ? (place) => view.getFloat32(place, true) : (place) => view.getFloat64(place, true);
  return { count, row: (r) => Array.from({ length: width }, (_, c) => read(begin + size * (r * width + c))) };
};
