#include "observe/chrome_trace.h"

#include <nlohmann/json.hpp>

#include "base/narrow.h"
#include "formats/json.h"

namespace longspan {

void ChromeTrace::add(const std::string& event) {
  if (!events_.empty()) events_ += ",\n";
  events_ += event;
}

void ChromeTrace::name_rank(int rank, const std::string& name) {
  add(Json{{"ph", "M"}, {"pid", rank}, {"name", "process_name"}, {"args", {{"name", name}}}}
          .dump());
}

int ChromeTrace::track_number(int rank, const std::string& track) {
  const auto [found, is_new] = tracks_.try_emplace({rank, track}, narrow<int>(tracks_.size()));
  if (is_new) {
    add(Json{{"ph", "M"},
             {"pid", rank},
             {"tid", found->second},
             {"name", "thread_name"},
             {"args", {{"name", track}}}}
            .dump());
  }
  return found->second;
}

void ChromeTrace::slice(const TraceSlice& slice) {
  const int track = track_number(slice.rank, slice.track);
  Json event{{"ph", "X"},
             {"pid", slice.rank},
             {"tid", track},
             {"ts", slice.begin_us},
             {"dur", slice.end_us - slice.begin_us},
             {"name", slice.name},
             {"cat", slice.category}};
  for (const auto& [key, value] : slice.details) event["args"][key] = value;
  add(event.dump());
}

void ChromeTrace::arrow(const char* phase, int rank, const std::string& track, double at_us,
                        const std::string& id) {
  const int number = track_number(rank, track);
  // bp e: an arrow ends in the slice around it, not in the next one.
  add(Json{{"ph", phase},
           {"bp", "e"},
           {"pid", rank},
           {"tid", number},
           {"ts", at_us},
           {"id", id},
           {"name", "rows"},
           {"cat", "attention"}}
          .dump());
}

void ChromeTrace::arrow_begin(int rank, const std::string& track, double at_us,
                              const std::string& id) {
  arrow("s", rank, track, at_us, id);
}

void ChromeTrace::arrow_end(int rank, const std::string& track, double at_us,
                            const std::string& id) {
  arrow("f", rank, track, at_us, id);
}

std::string ChromeTrace::document(const std::vector<std::string>& events) {
  std::string document = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  bool first = true;
  for (const std::string& of_rank : events) {
    if (of_rank.empty()) continue;
    if (!first) document += ",\n";
    first = false;
    document += of_rank;
  }
  return document + "\n]}\n";
}

}  // namespace longspan
