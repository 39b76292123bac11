#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "formats/little_endian.h"
#include "formats/safetensors_writer.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

struct Model {
  std::vector<TensorDescription> tensors;
  std::vector<std::string> data;
};

Model random_model(uint64_t seed) {
  RandomStream random(seed, "safetensors model");
  const std::vector<StoredDtype> dtypes{StoredDtype::kF32, StoredDtype::kBF16, StoredDtype::kU8,
                                        StoredDtype::kF64, StoredDtype::kF8E4M3};
  Model model;
  const uint64_t count = random.below(9);
  for (uint64_t idx = 0; idx < count; ++idx) {
    TensorDescription tensor{text("layer.", idx, ".\"ö\\"), dtypes[random.below(5)], {}};
    for (uint64_t axis = random.below(4); axis > 0; --axis) {
      tensor.shape.push_back(random.below(12) == 0 ? 0 : random.between(1, 5));
    }
    std::string bytes(static_cast<size_t>(byte_count(tensor)), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.below(256));
    model.tensors.push_back(tensor);
    model.data.push_back(bytes);
  }
  return model;
}

std::span<const std::byte> bytes_of(std::string_view characters) {
  return std::as_bytes(std::span(characters));
}

std::string characters_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename Writer>
void write_all(Writer& writer, const Model& model) {
  for (size_t idx = 0; idx < model.tensors.size(); ++idx) {
    const std::string& data = model.data[idx];
    writer.write(model.tensors[idx].name, bytes_of(data).first(data.size() / 2));
    writer.write(model.tensors[idx].name, bytes_of(data).subspan(data.size() / 2));
  }
  writer.finish();
}

std::map<std::string, std::string> folder_content(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_text(entry.path());
  }
  return files;
}

std::string file_bytes(const std::string& header, const std::string& data) {
  std::string bytes;
  append_little_endian(bytes, static_cast<uint64_t>(header.size()));
  return bytes + header + data;
}

std::string refusal(const std::string& bytes) {
  try {
    parse_safetensors_header(bytes_of(bytes), "FILE");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Safetensors, HandMadeFile) {
  const TestFolder folder;
  const std::string header =
      R"({"b":{"dtype":"I32","shape":[1,2],"data_offsets":[4,12]},"__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )";
  const SafetensorsFile file(folder.write("x.safetensors", file_bytes(header, "0123456789ab")));
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "a");  // in the order of the data
  EXPECT_EQ(characters_of(file.tensor("b").bytes), "456789ab");
  EXPECT_EQ(file.tensor("b").description.shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_THROW(file.tensor("c"), UserError);
}

TEST(Safetensors, HeaderBytesAreThoseOfTheFormat) {
  const std::string header = format_safetensors_header(
      {{"a", StoredDtype::kBF16, {3}}, {"b", StoredDtype::kF64, {2, 0}}}, {{"format", "pt"}});
  const std::string expected =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},)"
      R"("b":{"dtype":"F64","shape":[2,0],"data_offsets":[6,6]}})";
  EXPECT_EQ(header.substr(8, expected.size()), expected);
  EXPECT_EQ(header.find_first_not_of(' ', 8 + expected.size()), std::string::npos);
  EXPECT_EQ(header.size() % 8, 0u);
  EXPECT_EQ(load_little_endian<uint64_t>(bytes_of(header), 0), header.size() - 8);
}

TEST(Safetensors, RoundTripIsByteIdentical) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "shard size");
    const Model model = random_model(seed);
    const TestFolder folder;
    const int64_t max_shard_bytes = random.between(1, 400);
    SafetensorsFolderWriter writer(folder / "first", model.tensors, {{"format", "pt"}},
                                   max_shard_bytes);
    write_all(writer, model);

    const SafetensorsSet set(folder / "first");
    ASSERT_EQ(set.names().size(), model.tensors.size());
    Model loaded;
    for (size_t idx = 0; idx < model.tensors.size(); ++idx) {
      const TensorView view = set.tensor(model.tensors[idx].name);
      EXPECT_EQ(view.description, model.tensors[idx]);
      EXPECT_EQ(characters_of(view.bytes), model.data[idx]);
    }
    for (const std::string& name : set.names()) {
      loaded.tensors.push_back(set.tensor(name).description);
      loaded.data.push_back(characters_of(set.tensor(name).bytes));
    }
    SafetensorsFolderWriter again(folder / "second", loaded.tensors, set.files()[0].metadata(),
                                  max_shard_bytes);
    write_all(again, loaded);
    EXPECT_EQ(folder_content(folder / "first"), folder_content(folder / "second"));
  }
}

TEST(Safetensors, RefusalsNameFileTensorAndReason) {
  const auto entry = [](const std::string& name, const std::string& body) {
    return "\"" + name + "\":{" + body + "}";
  };
  const std::string a = entry("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,8])");
  const auto refuse = [&](const std::string& header, const std::string& reason) {
    const std::string message = refusal(file_bytes("{" + header + "}", "01234567"));
    EXPECT_NE(message.find(reason), std::string::npos) << header << "\n" << message;
    EXPECT_EQ(message.find("FILE"), 0u) << message;
  };
  EXPECT_EQ(refusal(file_bytes("{" + a + "}", "01234567")), "");
  refuse(a + "," + a, "'a' twice");
  refuse(entry("a", R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"), "twice");
  refuse(entry("a", R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), "shape x dtype is 12");
  refuse(entry("a", R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "tensor 'a'");
  refuse(entry("a", R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"),
         "more than 2^63");
  refuse(entry("a", R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), "'shape' must be");
  refuse(entry("a", R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"), "F31 is not supported");
  refuse(entry("a", R"("dtype":1,"shape":[2],"data_offsets":[0,8])"), "'dtype' must be");
  refuse(entry("a", R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "begin <= end");
  refuse(entry("a", R"("dtype":"F32","shape":[2],"data_offsets":[0])"), "begin <= end");
  refuse(entry("a", R"("dtype":"F32","shape":[2])"), "'data_offsets'");
  refuse(entry("a", R"("dtype":"F32","shape":[4],"data_offsets":[0,16])"), "truncated");
  refuse(entry("a", R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), "4 bytes before");
  refuse(entry("a", R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), "4 bytes after the last");
  refuse(a + "," + entry("b", R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), "overlaps");
  refuse("\"a\":3", "must be an object");
  refuse(R"("__metadata__":{"x":1},)" + a, "must be a string");
  refuse("\"a\":{", "not valid JSON");
  EXPECT_NE(refusal("1234567").find("truncated"), std::string::npos);
  EXPECT_NE(refusal(file_bytes("{}", "").substr(0, 9)).find("truncated"), std::string::npos);
  EXPECT_NE(refusal(file_bytes("[]", "")).find("JSON object"), std::string::npos);
}

// Whatever the bytes: a UserError, or spans inside the file that follow each other.
TEST(Safetensors, RandomDamageNeverCrashes) {
  const Model model = random_model(5);
  const TestFolder folder;
  SafetensorsWriter writer(folder / "x", model.tensors);
  write_all(writer, model);
  const std::string good = read_text(folder / "x");
  ASSERT_GT(model.tensors.size(), 1u);
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    RandomStream random(seed, "safetensors damage");
    std::string damaged = good;
    for (uint64_t count = 1 + random.below(3); count > 0; --count) {
      damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
    }
    if (random.below(5) == 0) damaged.resize(random.below(damaged.size()));
    try {
      const SafetensorsHeader header = parse_safetensors_header(bytes_of(damaged), "x");
      for (const Range& span : header.spans) {
        EXPECT_TRUE(Range(8, static_cast<int64_t>(damaged.size())).contains(span)) << seed;
      }
    } catch (const UserError&) {
    }
  }
}

TEST(Safetensors, FolderMustAgreeWithItsIndex) {
  const Model model{{{"a", StoredDtype::kU8, {2}}, {"b", StoredDtype::kU8, {2}}}, {"aa", "bb"}};
  const TestFolder folder;
  SafetensorsFolderWriter writer(folder.path(), model.tensors, {}, 2);
  write_all(writer, model);
  const auto index = folder / "model.safetensors.index.json";
  const auto refuse = [&](const std::string& weight_map, const std::string& reason) {
    write_text_atomic(index, R"({"weight_map":)" + weight_map + "}");
    try {
      const SafetensorsSet set(folder.path());
      ADD_FAILURE() << "accepted " << weight_map;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  };
  const std::string first = R"("a":"model-00001-of-00002.safetensors")";
  const std::string second = R"("b":"model-00002-of-00002.safetensors")";
  EXPECT_EQ(SafetensorsSet(folder.path()).names(), (std::vector<std::string>{"a", "b"}));
  refuse("{" + first + "," + second + R"(,"c":"model-00001-of-00002.safetensors"})", "'c'");
  refuse("{" + first + R"(,"b":"model-00001-of-00002.safetensors"})", "'b'");
  refuse("{" + first + R"(,"b":"other.safetensors"})", "is missing");
  refuse("{" + first + R"(,"b":"../x.safetensors"})", "not the name of a file");
  refuse("{" + first + R"(,"b":7})", "must be a string");
  refuse("[]", "weight_map");
  refuse("{", "not valid JSON");

  folder.write("model.safetensors", "");
  EXPECT_THROW(SafetensorsSet(folder.path()), UserError);  // which of the two is meant?
  EXPECT_THROW(SafetensorsSet(folder / "nothing"), UserError);
  EXPECT_THROW(SafetensorsFolderWriter(folder.path(), model.tensors, {}, 2), UserError);
}

TEST(Safetensors, WriterRefusesWrongOrderAndWrongSize) {
  const TestFolder folder;
  SafetensorsWriter writer(folder / "x",
                           {{"a", StoredDtype::kU8, {2}}, {"b", StoredDtype::kU8, {1}}});
  EXPECT_THROW(writer.write("b", bytes_of("x")), InternalError);
  EXPECT_THROW(writer.write("a", bytes_of("xxx")), InternalError);
  EXPECT_THROW(writer.publish(), InternalError);
  EXPECT_THROW(
      SafetensorsWriter(folder / "y", {{"a", StoredDtype::kU8, {2}}, {"a", StoredDtype::kU8, {2}}}),
      InternalError);
}

}  // namespace
}  // namespace longspan
