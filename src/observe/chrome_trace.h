// A trace in the event format of chrome://tracing and Perfetto: what each rank did, when, and what
// it waited for.
//
//   ChromeTrace trace;
//   trace.name_rank(0, "rank 0");
//   trace.slice({.rank = 0, .track = "work", .name = "pre_segment", .begin_us = 10, .end_us = 60,
//                .details = {{"layer", "3"}}});
//   trace.arrow_begin(0, "work", 55, "queries of chunk 1");     // ids pair begin and end
//   trace.arrow_end(1, "work", 80, "queries of chunk 1");
//   write(file, trace.events()); ... ChromeTrace::document({events of rank 0, events of rank 1})
//
// Shown are processes (ranks), threads (tracks), slices, and arrows between slices: an arrow starts
// or ends in the slice that covers its time. Source: "Trace Event Format", Google, 2016: phases X,
// s, f, M. Values; one thread.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace longspan {

struct TraceSlice {
  int rank = 0;
  std::string track;
  std::string name;
  std::string category;
  double begin_us = 0;
  double end_us = 0;
  std::vector<std::pair<std::string, std::string>> details;
};

class ChromeTrace {
 public:
  void name_rank(int rank, const std::string& name);
  void slice(const TraceSlice& slice);
  void arrow_begin(int rank, const std::string& track, double at_us, const std::string& id);
  void arrow_end(int rank, const std::string& track, double at_us, const std::string& id);

  // JSON objects, separated by commas.
  const std::string& events() const { return events_; }
  // The whole file, of the events of all ranks.
  static std::string document(const std::vector<std::string>& events);

 private:
  int track_number(int rank, const std::string& track);
  void add(const std::string& event);
  void arrow(const char* phase, int rank, const std::string& track, double at_us,
             const std::string& id);

  std::string events_;
  std::map<std::pair<int, std::string>, int> tracks_;
};

}  // namespace longspan
