// The two 2-byte element types, as types to instantiate kernels with. Elements travel as raw `unsigned short`;
// arithmetic is f32 and rounds to nearest even on the way back.

#ifndef KVTIDE_EMULATED
__device__ __forceinline__ float fp16_to_f32(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// `low` lands in the lower half: the element of the lower address.
__device__ __forceinline__ unsigned pack_fp16(float low, float high) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
#endif

struct Bf16 {
  static __device__ __forceinline__ float widen(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }
  static __device__ __forceinline__ unsigned pack(float low, float high) { return pack_bf16(low, high); }
  static __device__ __forceinline__ unsigned short narrow(float value) { return (unsigned short)pack_bf16(value, 0.0f); }
};

struct Fp16 {
  static __device__ __forceinline__ float widen(unsigned short bits) { return fp16_to_f32(bits); }
  static __device__ __forceinline__ unsigned pack(float low, float high) { return pack_fp16(low, high); }
  static __device__ __forceinline__ unsigned short narrow(float value) { return (unsigned short)pack_fp16(value, 0.0f); }
};

// Eight elements of a 16-byte vector as f32, and back.
template <class Element>
__device__ __forceinline__ void widen8(const uint4& bits, float (&values)[8]) {
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = Element::widen((unsigned short)words[i]);
    values[2 * i + 1] = Element::widen((unsigned short)(words[i] >> 16));
  }
}

template <class Element>
__device__ __forceinline__ uint4 narrow8(const float (&values)[8]) {
  return make_uint4(Element::pack(values[0], values[1]), Element::pack(values[2], values[3]),
                    Element::pack(values[4], values[5]), Element::pack(values[6], values[7]));
}

