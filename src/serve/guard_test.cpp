#include "serve/guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/http_message.h"

namespace tercet {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

HttpRequest with(HttpHeaders headers) {
  HttpRequest request;
  request.method = "GET";
  request.headers = std::move(headers);
  return request;
}

TEST(Guard, TakesKeysInEveryForm) {
  const Guard guard({.keys = {"secret", "other"}, .origins = {}, .local = false});
  for (const char* header :
       {"Bearer secret", "bearer other", "Basic YW55OnNlY3JldA==", "Basic OnNlY3JldA=="}) {
    EXPECT_FALSE(guard.check_key(with({{"authorization", header}}))) << header;
  }
  EXPECT_FALSE(guard.check_key(with({{"x-api-key", "other"}})));
  for (const char* header :
       {"", "Bearer", "Bearer ", "Bearer Secret", "secret", "Basic secret", "Basic YW55Og==", "Basic"}) {
    const auto error = guard.check_key(with({{"authorization", header}}));
    ASSERT_TRUE(error) << header;
    EXPECT_EQ(error->status, 401);
  }
  EXPECT_FALSE(Guard(GuardOptions{}).check_key(with({})));
}

TEST(Guard, RefusesPagesOfOtherSites) {
  const Guard guard({.keys = {}, .origins = {"https://good.example"}, .local = false});
  EXPECT_FALSE(guard.check_origin(with({})));
  EXPECT_FALSE(guard.check_origin(with({{"origin", "https://good.example"}})));
  EXPECT_FALSE(guard.check_origin(with({{"origin", "http://localhost:8000"}, {"host", "localhost:8000"}})));
  const auto error =
      guard.check_origin(with({{"origin", "https://evil.example"}, {"host", "localhost:8000"}}));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status, 403);
  EXPECT_TRUE(guard.cors_headers(with({{"origin", "https://evil.example"}})).empty());
  EXPECT_EQ(guard.cors_headers(with({{"origin", "https://good.example"}}))[0].second, "https://good.example");
  EXPECT_FALSE(
      Guard({.keys = {}, .origins = {"*"}, .local = false}).check_origin(with({{"origin", "null"}})));
}

TEST(Guard, RefusesNamesOfOthersForThisMachine) {
  // A site's own page, once its name leads to 127.0.0.1 (DNS rebinding).
  const HttpRequest rebound = with({{"host", "evil.example:8000"}, {"origin", "http://evil.example:8000"}});
  const Guard guard({.keys = {}, .origins = {"https://good.example"}, .local = true});
  const auto error = guard.check_origin(rebound);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status, 403);
  EXPECT_EQ(error->code, "host_not_permitted");
  EXPECT_THAT(error->message, HasSubstr("evil.example:8000"));
  for (const char* host :
       {"127.0.0.1.evil.example", "localhost.evil.example", "notlocalhost", "evil.example"}) {
    EXPECT_TRUE(guard.check_origin(with({{"host", host}}))) << host;
  }
  for (const char* host : {"", "localhost", "LocalHost:8000", "127.0.0.1:8000", "[::1]:8000", "192.168.0.7",
                           "api.localhost:80", "good.example"}) {
    EXPECT_FALSE(guard.check_origin(with({{"host", host}}))) << host;
  }
  // A key guards better than a name, and who listens to others has been asked to.
  EXPECT_FALSE(Guard({.keys = {"k"}, .origins = {}, .local = true}).check_origin(rebound));
  EXPECT_FALSE(Guard({.keys = {}, .origins = {}, .local = false}).check_origin(rebound));
  EXPECT_FALSE(Guard({.keys = {}, .origins = {"*"}, .local = true}).check_origin(rebound));
}

TEST(HttpMessage, WritesHeads) {
  const std::string head = head_text({.status = 404,
                                      .reason = "Not Found",
                                      .type = "text/plain",
                                      .framing = Framing::length,
                                      .length = 5,
                                      .keep_alive = false,
                                      .request_id = "r1"},
                                     {{"A", "1"}}, {{"B", "2"}});
  EXPECT_THAT(head, StartsWith("HTTP/1.1 404 Not Found\r\n"));
  for (const char* line :
       {"\r\nContent-Type: text/plain\r\n", "\r\nContent-Length: 5\r\n", "\r\nConnection: close\r\n",
        "\r\nX-Request-Id: r1\r\n", "\r\nA: 1\r\nB: 2\r\n\r\n"}) {
    EXPECT_THAT(head, HasSubstr(line));
  }
  EXPECT_EQ(chunk_text("0123456789abcdef"), "10\r\n0123456789abcdef\r\n");
}

TEST(HttpMessage, RequestIdsAreShortWords) {
  EXPECT_EQ(request_id("a-B.9:_"), "a-B.9:_");
  for (const std::string& bad :
       {std::string(), std::string("a b"), std::string("a\"b"), std::string(129, 'a')}) {
    EXPECT_THAT(request_id(bad), StartsWith("req-"));
  }
  EXPECT_NE(request_id(""), request_id(""));
}

TEST(ApiError, NamesTheFieldThatTheMessageBeginsWith) {
  const Json request{{"messages", 1}};
  EXPECT_EQ(error_from(request, "messages[0].role: is missing").param, "messages");
  EXPECT_EQ(error_from(request, "the request: is odd").param, "");
  const Json body = openai_error({.status = 400, .message = "m", .param = "p"});
  EXPECT_EQ(to_json_text(body),
            R"({"error": {"message": "m", "type": "invalid_request_error", "param": "p", "code": null}})");
  const HttpResponse response = openai_error_response({.status = 429, .message = "m", .retry_after = 3});
  EXPECT_EQ(response.headers[0], (std::pair<std::string, std::string>("Retry-After", "3")));
}

TEST(ApiError, FloatsKeepTheirBits) {
  for (const float value : {-0.1F, -1.1754944e-38F, -12.3456789F, 0.0F}) {
    const double told = exact_number(value).get<double>();
    EXPECT_EQ(static_cast<float>(told), value);
    EXPECT_LE(wire_text(exact_number(value)).size(), 16U);
  }
}

}  // namespace
}  // namespace tercet
