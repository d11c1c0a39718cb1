// Reads and writes safetensors files, with the tensor names and metadata of linnet.inference.state.

const ARRAYS = { F32: Float32Array, I64: BigInt64Array };
const MAX_HEADER_BYTES = 2 ** 27;

// tensors: {name: {data, dims}}; notes: metadata {name: text}.
export function writeTensors(tensors, notes) {
  const names = Object.keys(tensors).sort();
  const header = { __metadata__: notes };
  let end = 0;
  for (const name of names) {
    const { data, dims } = tensors[name];
    const dtype = data instanceof Float32Array ? "F32" : "I64";
    header[name] = { dtype, shape: dims, data_offsets: [end, end += data.byteLength] };
  }
  const plain = new TextEncoder().encode(JSON.stringify(header));
  const length = Math.ceil(plain.length / 8) * 8;
  const bytes = new Uint8Array(8 + length + end).fill(0x20, 8, 8 + length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(length), true);
  bytes.set(plain, 8);
  for (const name of names) {
    const { data } = tensors[name];
    bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 8 + length + header[name].data_offsets[0]);
  }
  return bytes;
}

export function readTensors(buffer) {
  const length = buffer.byteLength < 8 ? Infinity : Number(new DataView(buffer).getBigUint64(0, true));
  if (length > Math.min(MAX_HEADER_BYTES, buffer.byteLength - 8)) throw new Error("not a safetensors file");
  const { __metadata__: notes = {}, ...header } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [start, end] }] of Object.entries(header)) {
    const kind = ARRAYS[dtype];
    const count = shape.reduce((product, size) => product * size, 1);
    if (!kind) throw new Error(`tensor ${name}: ${dtype}: expected float32 or int64 (F32, I64)`);
    if (end - start !== count * kind.BYTES_PER_ELEMENT) throw new Error(`tensor ${name}: not as large as its shape`);
    tensors[name] = { data: new kind(buffer.slice(8 + length + start, 8 + length + end)), dims: shape };
  }
  return { tensors, notes };
}
