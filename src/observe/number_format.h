// Numbers as people read them, the same in console lines, reports and tables.
//
//   short_count(48123) == "48.1k"      short_bytes(99'110'000'000) == "92.3 GiB"
//   clock_time(8045) == "2:14:05"      short_power(3e-4) == "3.0e-4"
//
// Three significant digits where a value is rounded. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>

namespace longspan {

// printf's %.<digits>f.
std::string fixed_digits(double value, int digits);

// Three significant digits without an exponent: "92.3", "139", "0.0125"; "nan" and "inf" as such.
std::string three_digits(double value);

// Decimal steps k, M, G, T, P; whole numbers below 1000 stay as they are.
std::string short_count(double value);

// Binary steps KiB, MiB, GiB, TiB.
std::string short_bytes(double bytes);

double gib(int64_t bytes);

// h:mm:ss, or m:ss below one hour; rounded to seconds, hours beyond 24 go on counting.
std::string clock_time(double seconds);

// "3.0e-4", "1.2e+1" as 1.2e1: one decimal and a bare exponent; "0" for 0.
std::string short_power(double value);

// Positions and lengths, mostly powers of two, as the field writes them: 131072 is "128K".
std::string token_length(int64_t tokens);

}  // namespace longspan
