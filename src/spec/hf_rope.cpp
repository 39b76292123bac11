#include "spec/hf_rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "spec/hf_fields.h"

namespace longspan {
namespace {

constexpr std::array kTypes = {RopeType::kDefault, RopeType::kLinear, RopeType::kLlama3,
                               RopeType::kYarn};

// The fields that each type takes, beside rope_type, type, rope_theta and partial_rotary_factor.
std::vector<std::string_view> fields_of(RopeType type) {
  switch (type) {
    case RopeType::kDefault:
      return {};
    case RopeType::kLinear:
      return {"factor"};
    case RopeType::kLlama3:
      return {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"};
    case RopeType::kYarn:
      return {"factor",    "original_max_position_embeddings",
              "mscale",    "attention_factor",
              "beta_fast", "mscale_all_dim",
              "beta_slow", "truncate"};
  }
  throw InternalError("unknown rope type");
}

RopeType parse_type(const JsonFields& fields) {
  const std::string name =
      fields.string("rope_type").value_or(fields.string("type").value_or("default"));
  std::string known;
  for (const RopeType type : kTypes) {
    if (rope_type_name(type) == name) return type;
    known += text(known.empty() ? "" : ", ", rope_type_name(type));
  }
  throw UserError(
      text(fields.origin(), ": rope type \"", name, "\" is not implemented; known: ", known));
}

void check_fields(const Json& object, RopeType type, const std::string& origin) {
  const std::vector<std::string_view> own = fields_of(type);
  for (const auto& [key, value] : object.items()) {
    if (key == "rope_type" || key == "type" || key == "rope_theta") continue;
    if (key == "partial_rotary_factor") {
      if (value.is_null() || value == 1.0) continue;
      throw UserError(text(origin, ": partial_rotary_factor = ", value.dump(),
                           ": rotary embedding of a part of the head is not implemented"));
    }
    if (value.is_null() || std::find(own.begin(), own.end(), key) != own.end()) continue;
    throw UserError(text(origin, ": ", key, " = ", value.dump(), " has no meaning for rope type ",
                         rope_type_name(type), "; remove it from the file if it has none"));
  }
}

void check_values(const RopeSpec& rope, const std::string& origin) {
  const auto refuse_unless = [&](bool good, const char* key, double value, const char* rule) {
    if (!good) throw UserError(text(origin, ": ", key, " = ", value, "; it must be ", rule));
  };
  refuse_unless(rope.theta > 1 && std::isfinite(rope.theta), "rope_theta", rope.theta, "above 1");
  refuse_unless(rope.factor >= 1 && std::isfinite(rope.factor), "factor", rope.factor,
                "at least 1");
  if (rope.type == RopeType::kLlama3) {
    // Far from where float32 could not tell the two apart.
    refuse_unless(rope.low_freq_factor >= 1e-3 && rope.low_freq_factor <= 1e6, "low_freq_factor",
                  rope.low_freq_factor, "from 0.001 to 1e6");
    refuse_unless(
        rope.high_freq_factor >= rope.low_freq_factor * 1.001 && rope.high_freq_factor <= 1e6,
        "high_freq_factor", rope.high_freq_factor, "above low_freq_factor and at most 1e6");
  }
  if (rope.type == RopeType::kYarn) {
    refuse_unless(rope.beta_slow > 0, "beta_slow", rope.beta_slow, "above 0");
    refuse_unless(rope.beta_fast >= rope.beta_slow, "beta_fast", rope.beta_fast,
                  "at least beta_slow");
    refuse_unless(rope.mscale >= 0 && std::isfinite(rope.mscale), "mscale", rope.mscale,
                  "at least 0");
    refuse_unless(rope.mscale_all_dim >= 0 && std::isfinite(rope.mscale_all_dim), "mscale_all_dim",
                  rope.mscale_all_dim, "at least 0");
    const double scaling = rope.attention_factor.value_or(1);
    refuse_unless(scaling > 0 && std::isfinite(scaling), "attention_factor", scaling, "above 0");
  }
}

double required_number(const JsonFields& fields, const char* key) {
  const std::optional<double> value = fields.number(key);
  if (!value) throw UserError(text(fields.origin(), ": ", key, " is missing"));
  return *value;
}

RopeSpec parse_object(const Json& object, const JsonFields& outer, double outer_theta,
                      int64_t max_position_embeddings, const std::string& origin) {
  if (!object.is_object()) throw UserError(text(origin, ": it must be an object"));
  const JsonFields fields(object, origin);
  RopeSpec rope;
  rope.type = parse_type(fields);
  check_fields(object, rope.type, origin);
  rope.theta = fields.number("rope_theta", outer_theta);
  if (rope.type == RopeType::kDefault) {
    check_values(rope, origin);
    return rope;
  }
  if (rope.type != RopeType::kLinear) {
    const std::optional<int64_t> inside = fields.integer("original_max_position_embeddings");
    rope.original_max_position_embeddings = outer.integer("original_max_position_embeddings")
                                                .value_or(inside.value_or(max_position_embeddings));
    if (rope.original_max_position_embeddings < 1) {
      throw UserError(text(origin, ": original_max_position_embeddings = ",
                           rope.original_max_position_embeddings, "; it must be at least 1"));
    }
  }
  // Only yarn may leave the factor to the ratio of the two lengths, by writing null.
  const bool factor_by_lengths =
      rope.type == RopeType::kYarn && object.contains("factor") && object.at("factor").is_null();
  rope.factor = factor_by_lengths ? static_cast<double>(max_position_embeddings) /
                                        static_cast<double>(rope.original_max_position_embeddings)
                                  : required_number(fields, "factor");
  if (rope.type == RopeType::kLlama3) {
    rope.low_freq_factor = required_number(fields, "low_freq_factor");
    rope.high_freq_factor = required_number(fields, "high_freq_factor");
  }
  if (rope.type == RopeType::kYarn) {
    rope.attention_factor = fields.number("attention_factor");
    // transformers takes 0 for "not given" in these four.
    const auto unless_zero = [&](const char* key, double otherwise) {
      const double value = fields.number(key, 0);
      return value == 0 ? otherwise : value;
    };
    rope.beta_fast = unless_zero("beta_fast", rope.beta_fast);
    rope.beta_slow = unless_zero("beta_slow", rope.beta_slow);
    rope.mscale = unless_zero("mscale", rope.mscale);
    rope.mscale_all_dim = unless_zero("mscale_all_dim", rope.mscale_all_dim);
    rope.truncate = fields.boolean("truncate", true);
  }
  check_values(rope, origin);
  return rope;
}

// rope_parameters may hold one object for each layer type; all layers here are of one type.
const Json& unnest(const Json& parameters, const std::string& origin) {
  if (!parameters.is_object() || !parameters.contains("full_attention")) return parameters;
  for (const auto& [key, value] : parameters.items()) {
    if (key != "full_attention" && !value.is_null()) {
      throw UserError(text(origin, ": ", key,
                           " beside full_attention: other layer types are not "
                           "implemented"));
    }
  }
  return parameters.at("full_attention");
}

}  // namespace

RopeSpec parse_hf_rope(const Json& config, int64_t max_position_embeddings,
                       const std::string& origin) {
  const JsonFields fields(config, origin);
  const double theta = fields.number("rope_theta", RopeSpec{}.theta);
  const Json* scaling = fields.find("rope_scaling");
  const Json* parameters = fields.find("rope_parameters");
  const auto parse = [&](const Json& object, const char* name) {
    const std::string where = text(origin, ": ", name);
    return parse_object(unnest(object, where), fields, theta, max_position_embeddings, where);
  };
  if (scaling != nullptr && parameters != nullptr) {
    const RopeSpec old_spelling = parse(*scaling, "rope_scaling");
    const RopeSpec new_spelling = parse(*parameters, "rope_parameters");
    if (old_spelling != new_spelling) {
      throw UserError(text(origin,
                           ": rope_scaling and rope_parameters contradict each other; "
                           "keep one"));
    }
    return new_spelling;
  }
  if (scaling != nullptr) return parse(*scaling, "rope_scaling");
  if (parameters != nullptr) return parse(*parameters, "rope_parameters");
  RopeSpec rope;
  rope.theta = theta;
  check_values(rope, origin);
  return rope;
}

Json hf_rope_parameters(const RopeSpec& rope) {
  Json result;
  result["rope_type"] = rope_type_name(rope.type);
  result["rope_theta"] = rope.theta;
  if (rope.type == RopeType::kDefault) return result;
  result["factor"] = rope.factor;
  if (rope.type == RopeType::kLinear) return result;
  result["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  if (rope.type == RopeType::kLlama3) {
    result["low_freq_factor"] = rope.low_freq_factor;
    result["high_freq_factor"] = rope.high_freq_factor;
    return result;
  }
  if (rope.attention_factor) result["attention_factor"] = *rope.attention_factor;
  result["beta_fast"] = rope.beta_fast;
  result["beta_slow"] = rope.beta_slow;
  if (rope.mscale != 0) result["mscale"] = rope.mscale;
  if (rope.mscale_all_dim != 0) result["mscale_all_dim"] = rope.mscale_all_dim;
  result["truncate"] = rope.truncate;
  return result;
}

}  // namespace longspan
