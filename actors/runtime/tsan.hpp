#pragma once
// Happens-before edges for ThreadSanitizer. Messages change hands inside libcaf_core, which is not
// instrumented, so the common base class of our actors states the order. Empty in other builds.

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PILLAR_TSAN 1
#endif
#endif

#ifdef PILLAR_TSAN
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace pillar::runtime::detail {

inline void happens_after([[maybe_unused]] void* address) noexcept {
#ifdef PILLAR_TSAN
  __tsan_acquire(address);
#endif
}
inline void happens_before([[maybe_unused]] void* address) noexcept {
#ifdef PILLAR_TSAN
  __tsan_release(address);
#endif
}

}  // namespace pillar::runtime::detail
