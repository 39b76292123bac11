#include "observe/number_format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/error.h"

namespace longspan {
namespace {

// Scales `value` down by `step` until three digits before the point are enough. The test uses the
// rounded value, so that 999.96 becomes 1.00 of the next unit and not 1000.
template <size_t count>
std::string scaled(double value, double step, const std::array<const char*, count>& units) {
  size_t unit = 0;
  while (std::abs(value) >= (step == 1000 ? 999.5 : 1023.5) && unit + 1 < count) {
    value /= step;
    ++unit;
  }
  return three_digits(value) + units[unit];
}

}  // namespace

std::string fixed_digits(double value, int digits) {
  std::array<char, 400> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, value);
  return buffer.data();
}

std::string three_digits(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  if (value == 0) return "0";
  std::array<char, 64> rounded{};
  std::snprintf(rounded.data(), rounded.size(), "%.2e", value);
  const int exponent = std::atoi(
      std::string(rounded.data()).substr(std::string(rounded.data()).find('e') + 1).c_str());
  return fixed_digits(value, std::max(0, 2 - exponent));
}

std::string short_count(double value) {
  constexpr std::array<const char*, 6> units = {"", "k", "M", "G", "T", "P"};
  if (std::abs(value) < 999.5 && value == std::round(value)) return fixed_digits(value, 0);
  return scaled(value, 1000, units);
}

std::string short_bytes(double bytes) {
  constexpr std::array<const char*, 6> units = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  if (std::abs(bytes) < 1023.5) return fixed_digits(bytes, 0) + units[0];
  return scaled(bytes, 1024, units);
}

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024 * 1024);
}

std::string clock_time(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "?";
  const auto whole = static_cast<long long>(std::llround(seconds));
  std::array<char, 64> buffer{};
  if (whole >= 3600) {
    std::snprintf(buffer.data(), buffer.size(), "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60,
                  whole % 60);
  } else {
    std::snprintf(buffer.data(), buffer.size(), "%lld:%02lld", whole / 60, whole % 60);
  }
  return buffer.data();
}

std::string short_power(double value) {
  if (value == 0) return "0";
  if (!std::isfinite(value)) return three_digits(value);
  std::array<char, 64> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.1e", value);
  const std::string written = buffer.data();
  const size_t mark = written.find('e');
  return text(written.substr(0, mark), "e", std::atoi(written.c_str() + mark + 1));
}

std::string token_length(int64_t tokens) {
  constexpr int64_t kibi = 1024;
  constexpr int64_t mebi = kibi * 1024;
  if (tokens >= mebi && tokens % mebi == 0) return text(tokens / mebi, "M");
  if (tokens >= kibi && tokens % kibi == 0) return text(tokens / kibi, "K");
  return text(tokens);
}

}  // namespace longspan
