#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include "messages/csi.pb.h"

namespace pb = google::protobuf;

namespace {

struct Sample {
  std::string_view message;
  std::string_view text;
  std::string_view hex;
};

#define GOLDEN(message, text, hex) {#message, text, hex},
#define LEGACY(message, text, hex) {#message, text, hex},
constexpr Sample k_samples[] = {
#include "csi_proto_golden.inc"
};
#undef GOLDEN
#undef LEGACY

const pb::FileDescriptor& csi_file() { return *csi::v1::CreateVolumeRequest::descriptor()->file(); }

std::unique_ptr<pb::Message> make(std::string_view name) {
  const auto* type = csi_file().FindMessageTypeByName(std::string(name));
  REQUIRE_MESSAGE(type != nullptr, name);
  return std::unique_ptr<pb::Message>(pb::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

/// Map entries in key order: the order of a plain serialisation is a matter of the hash.
std::string encode(const pb::Message& message) {
  std::string bytes;
  {
    pb::io::StringOutputStream out(&bytes);
    pb::io::CodedOutputStream coded(&out);
    coded.SetSerializationDeterministic(true);
    REQUIRE(message.SerializeToCodedStream(&coded));
  }
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view k_digits = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    const auto value = static_cast<unsigned char>(c);
    hex += k_digits[value >> 4U];
    hex += k_digits[value & 15U];
  }
  return hex;
}

void collect(const pb::Descriptor& type, std::vector<const pb::FieldDescriptor*>& fields) {
  for (int i = 0; i < type.field_count(); ++i) fields.push_back(type.field(i));
  for (int i = 0; i < type.nested_type_count(); ++i) collect(*type.nested_type(i), fields);
}

std::vector<const pb::FieldDescriptor*> all_fields() {
  std::vector<const pb::FieldDescriptor*> fields;
  for (int i = 0; i < csi_file().message_type_count(); ++i) collect(*csi_file().message_type(i), fields);
  return fields;
}

}  // namespace

TEST_SUITE_BEGIN("messages/csi_proto");

TEST_CASE("samples are encoded byte for byte as the published definition encodes them") {
  for (const auto& sample : k_samples) {
    CAPTURE(sample.message);
    const auto message = make(sample.message);
    REQUIRE(pb::TextFormat::ParseFromString(std::string(sample.text), message.get()));
    CHECK(to_hex(encode(*message)) == sample.hex);
  }
}

TEST_CASE("no field of a sample is lost on the way back") {
  for (const auto& sample : k_samples) {
    CAPTURE(sample.message);
    const auto message = make(sample.message);
    REQUIRE(pb::TextFormat::ParseFromString(std::string(sample.text), message.get()));
    const auto again = make(sample.message);
    REQUIRE(again->ParseFromString(message->SerializeAsString()));
    CHECK(again->GetReflection()->GetUnknownFields(*again).empty());
    CHECK(again->ShortDebugString() == message->ShortDebugString());
  }
}

TEST_CASE("every secrets field, and nothing else, carries the mark that keeps it out of the logs") {
  std::size_t secret = 0;
  for (const auto* field : all_fields()) {
    CAPTURE(field->full_name());
    const bool marked = field->options().GetExtension(csi::v1::csi_secret);
    CHECK(marked == (field->name() == "secrets"));
    secret += marked ? 1 : 0;
  }
  CHECK(secret == 22);
}

TEST_CASE("the volume condition of 1.12 sits where kubelets up to 1.36 read it") {
  CHECK(csi::v1::NodeGetVolumeStatsResponse::kVolumeConditionFieldNumber == 2);
  CHECK(csi::v1::ListVolumesResponse::VolumeStatus::kVolumeConditionFieldNumber == 2);
  CHECK(csi::v1::ControllerGetVolumeResponse::VolumeStatus::kVolumeConditionFieldNumber == 2);
  CHECK(csi::v1::ControllerServiceCapability::RPC::VOLUME_CONDITION == 11);
  CHECK(csi::v1::NodeServiceCapability::RPC::VOLUME_CONDITION == 4);
}

TEST_CASE("services and their calls are all there") {
  const std::vector<std::pair<std::string, int>> expected = {
      {"Identity", 3}, {"Controller", 17}, {"GroupController", 4}, {"SnapshotMetadata", 2}, {"Node", 10}};
  REQUIRE(csi_file().package() == "csi.v1");
  REQUIRE(csi_file().service_count() == static_cast<int>(expected.size()));
  for (const auto& [name, calls] : expected) {
    CAPTURE(name);
    const auto* service = csi_file().FindServiceByName(name);
    REQUIRE(service != nullptr);
    CHECK(service->method_count() == calls);
  }
}

// A change of csi.proto that no sample above touches shows here: names, numbers and types of all fields and
// enum values, folded with FNV-1a. After a change: integration/wire/run first, then the new value.
TEST_CASE("fingerprint of all fields and enum values") {
  std::set<std::string> facts;
  std::set<const pb::EnumDescriptor*> enums;
  for (const auto* field : all_fields()) {
    const auto* oneof = field->containing_oneof();
    const auto shape = std::to_string(field->type()) + " " + std::to_string(field->label());
    facts.insert(field->full_name() + "=" + std::to_string(field->number()) + " " + shape + " " +
                 (oneof != nullptr ? oneof->name() : "-"));
    if (field->enum_type() != nullptr) enums.insert(field->enum_type());
  }
  for (const auto* type : enums) {
    for (int i = 0; i < type->value_count(); ++i) {
      const auto* value = type->value(i);
      facts.insert(type->full_name() + "." + value->name() + "=" + std::to_string(value->number()));
    }
  }
  std::uint64_t hash = 14695981039346656037U;
  for (const auto& fact : facts) {
    for (const char c : fact + "\n") hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  }
  CHECK(hash == 3806893320073550701U);
}

TEST_SUITE_END();
