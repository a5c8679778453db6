#include "serve/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "serve/test_exchange.h"

namespace tercet {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

/// The whole way of a request without a body.
HttpResponse response_to(Router& router, const std::string& method, const std::string& path) {
  HttpRequest request;
  request.method = method;
  request.path = path;
  if (auto refused = router.refuse(request)) return *refused;
  const auto exchange = std::make_shared<TestExchange>();
  router.answer(request, exchange);
  exchange->wait();
  return exchange->response;
}

TEST(Router, OnlyItsStateIsToldWhileTheModelIsLoaded) {
  Router router({});
  EXPECT_EQ(response_to(router, "GET", "/health").status, 200);
  EXPECT_EQ(response_to(router, "GET", "/ready").status, 503);
  EXPECT_THAT(response_to(router, "GET", "/ready").body, HasSubstr("loading"));
  EXPECT_EQ(response_to(router, "GET", "/metrics").status, 200);
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
                           "/v1/kl", "/tokenize", "/detokenize", "/apply-template"}) {
    EXPECT_THAT(response_to(router, "POST", path).body, HasSubstr("the model is being loaded")) << path;
  }
}

TEST(Router, IsReadyWhileStepsEndAndNothingDrains) {
  TestService test({.stall = milliseconds(5)});
  std::promise<void> hold;
  test.executor.during_run = [held = hold.get_future().share()] { held.wait(); };
  Router router({});
  router.serve(test.service);
  EXPECT_EQ(response_to(router, "GET", "/ready").status, 200);

  Request request;
  request.prompt = {1, 2, 3};
  request.params.max_tokens = 2;
  std::vector<Request> parts;
  parts.push_back(std::move(request));
  ASSERT_TRUE(test.driver.submit(std::move(parts), [](const Update&) {}).has_value());
  HttpResponse ready = response_to(router, "GET", "/ready");
  while (ready.status == 200) ready = response_to(router, "GET", "/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, HasSubstr("stalled"));
  EXPECT_EQ(response_to(router, "GET", "/health").status, 200);

  hold.set_value();
  while (response_to(router, "GET", "/ready").status != 200) std::this_thread::yield();
  test.driver.drain(milliseconds(60000));
  ready = response_to(router, "GET", "/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, HasSubstr("draining"));
}

}  // namespace
}  // namespace tercet
