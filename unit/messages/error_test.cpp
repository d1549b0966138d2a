#include <cerrno>
#include <set>

#include <doctest/doctest.h>

#include "messages/error.hpp"

using namespace pillar;

TEST_SUITE_BEGIN("messages/error");

TEST_CASE("every reason has a unique wire name that maps back") {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Reason::store_unavailable); ++i) {
    const auto reason = static_cast<Reason>(i);
    CHECK(names.insert(to_string(reason)).second);
    CHECK(reason_from_string(to_string(reason)) == reason);
    CHECK(info(reason).code != Code::ok);
  }
  CHECK(reason_from_string("FROM_A_NEWER_PEER") == Reason::internal);
}

TEST_CASE("O12: expected retriable outcomes are never logged as errors") {
  for (int i = 0; i <= static_cast<int>(Reason::store_unavailable); ++i) {
    const ReasonInfo& row = info(static_cast<Reason>(i));
    if (row.code == Code::aborted || (row.code == Code::unavailable && row.retry == Retry::backoff))
      CHECK_MESSAGE(row.severity != Severity::error, row.name);
  }
}

TEST_CASE("errno values choose the reason and keep the number") {
  CHECK(errno_error(ENOSPC, "write /x").reason == Reason::no_space);
  CHECK(errno_error(EROFS, "write /x").reason == Reason::permission_denied);
  CHECK(errno_error(ENOENT, "open /x", Reason::device_missing).reason == Reason::device_missing);
  const Error error = errno_error(EIO, "read /dev/x");
  CHECK(error.reason == Reason::io_error);
  CHECK(error.details.at("errno") == std::to_string(EIO));
  CHECK(error.message.find("read /dev/x") == 0);
}

TEST_SUITE_END();
