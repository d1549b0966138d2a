#include "crd/kube/store.hpp"

#include <atomic>
#include <mutex>

#include <nlohmann/json.hpp>

#include "crd/kube/http.hpp"
#include "crd/validation.hpp"
#include "messages/ids.hpp"

namespace pillar::crd::kube {
namespace {

using nlohmann::json;

constexpr const char* k_strict = "?fieldValidation=Strict";

std::string text_at(const json& value, const char* key) {
  const auto it = value.find(key);
  return it != value.end() && it->is_string() ? it->get<std::string>() : std::string();
}

bool true_at(const json& value, const char* key) {
  const auto it = value.find(key);
  return it != value.end() && it->is_boolean() && it->get<bool>();
}

std::map<std::string, std::string> map_at(const json& value, const char* key) {
  std::map<std::string, std::string> out;
  const auto it = value.find(key);
  if (it == value.end() || !it->is_object()) return out;
  for (const auto& [name, text] : it->items())
    if (text.is_string()) out.emplace(name, text.get<std::string>());
  return out;
}

Metadata metadata_from_server(const json& value) {
  Metadata out;
  if (!value.is_object()) return out;
  out.name = text_at(value, "name");
  out.uid = text_at(value, "uid");
  out.resource_version = text_at(value, "resourceVersion");
  out.creation_timestamp = text_at(value, "creationTimestamp");
  out.deletion_timestamp = text_at(value, "deletionTimestamp");
  out.labels = map_at(value, "labels");
  out.annotations = map_at(value, "annotations");
  if (const auto it = value.find("generation"); it != value.end() && it->is_number_integer())
    out.generation = it->get<std::int64_t>();
  if (const auto it = value.find("finalizers"); it != value.end() && it->is_array())
    for (const auto& one : *it)
      if (one.is_string()) out.finalizers.push_back(one.get<std::string>());
  if (const auto it = value.find("ownerReferences"); it != value.end() && it->is_array())
    for (const auto& one : *it)
      if (one.is_object())
        out.owner_references.push_back({text_at(one, "apiVersion"), text_at(one, "kind"),
                                        text_at(one, "name"), text_at(one, "uid"), true_at(one, "controller"),
                                        true_at(one, "blockOwnerDeletion")});
  return out;
}

Doc part(const json& value, const char* key) {
  const auto it = value.find(key);
  return it != value.end() && it->is_object() ? Doc::of(*it) : Doc();
}

/// The body of a write. Parts of metadata that only the server sets are left out.
std::string body_of(const Object& object, bool fresh) {
  Object sent = object;
  sent.metadata.generation = 0;
  sent.metadata.creation_timestamp.clear();
  sent.metadata.deletion_timestamp.clear();
  if (fresh) {
    sent.metadata.uid.clear();
    sent.metadata.resource_version.clear();
  }
  return to_json(sent).dump(-1, ' ', false, json::error_handler_t::replace);
}

Request write_request(const char* method, std::string path, const Object& object, bool fresh) {
  Request out;
  out.method = method;
  out.path = std::move(path) + k_strict;
  out.body = body_of(object, fresh);
  out.subject = subject(object);
  return out;
}

/// An update without a version would win against everybody.
bool has_version(const Object& object, const Store::Callback<Object>& done) {
  if (!object.metadata.resource_version.empty()) return true;
  const auto error =
      to_error(subject(object), {{"metadata.resourceVersion", "", "is required for an update"}});
  post([done, error] { done(tl::unexpected(error)); });
  return false;
}

/// Names go into paths: what is no name has no object, and must not reach a collection.
template <class T>
bool has_name(Kind kind, const std::string& name, const Store::Callback<T>& done) {
  if (is_object_name(name)) return true;
  const auto error = fail(Reason::not_found, subject(kind, name) + " does not exist").value();
  post([done, error] { done(tl::unexpected(error)); });
  return false;
}

Client::Done as_object(Kind kind, Store::Callback<Object> done) {
  return [kind, done = std::move(done)](Result<json> answer) {
    if (answer)
      done(object_from_server(kind, *answer));
    else
      done(tl::unexpected(answer.error()));
  };
}

void write_status(Client& client, const Object& object, Store::Callback<Object> done) {
  client.call(write_request("PUT", path_of(object.kind, object.metadata.name) + "/status", object, false),
              as_object(object.kind, std::move(done)));
}

std::string collection_subject(Kind kind) { return std::string(info(kind).plural); }

/// List, then watch, as one watch: what store.hpp promises for an empty start.
class ListThenWatch : public std::enable_shared_from_this<ListThenWatch> {
 public:
  ListThenWatch(std::shared_ptr<Client> client, Kind kind, WatchHandler handler)
      : client_(std::move(client)), kind_(kind), handler_(std::move(handler)) {}

  void list() {
    client_->list(path_of(kind_), collection_subject(kind_), {},
                  [weak = weak_from_this()](Result<Client::RawPage> page) {
                    if (const auto self = weak.lock()) self->listed(std::move(page));
                  });
  }
  void follow(std::string from) {
    RawWatchHandler raw;
    raw.on_event = [weak = weak_from_this()](std::string_view type, const json& object) {
      if (const auto self = weak.lock()) self->happened(type, object);
    };
    raw.on_end = [weak = weak_from_this()](const Error& error) {
      if (const auto self = weak.lock()) self->end(error);
    };
    auto watch = client_->watch(path_of(kind_), collection_subject(kind_), std::move(from), std::move(raw));
    const std::lock_guard lock(mutex_);
    if (!cancelled_) watch_ = std::move(watch);
  }
  void stop() {
    cancelled_ = true;
    if (!on_client_thread()) const std::lock_guard wait_for_handler(running_);
    std::unique_ptr<Watch> watch;
    {
      const std::lock_guard lock(mutex_);
      watch = std::move(watch_);
    }
  }

 private:
  void deliver(const WatchEvent& event) {
    const std::lock_guard lock(running_);
    if (!cancelled_) handler_.on_event(event);
  }
  void end(const Error& error) {
    const std::lock_guard lock(running_);
    if (!cancelled_ && handler_.on_end) handler_.on_end(error);
  }

  void listed(Result<Client::RawPage> page) {
    const auto self = shared_from_this();
    if (!page) return end(page.error());
    for (auto& item : page->items) {
      if (cancelled_) return;
      deliver({WatchEvent::Type::added, object_from_server(kind_, item)});
      item = nullptr;
    }
    WatchEvent complete{WatchEvent::Type::bookmark, {}};
    complete.object.kind = kind_;
    complete.object.metadata.resource_version = page->resource_version;
    deliver(complete);
    if (!cancelled_) follow(page->resource_version);
  }

  void happened(std::string_view type, const json& object) {
    const auto self = shared_from_this();
    WatchEvent event;
    event.object = object_from_server(kind_, object);
    if (type == "ADDED")
      event.type = WatchEvent::Type::added;
    else if (type == "MODIFIED")
      event.type = WatchEvent::Type::modified;
    else if (type == "DELETED")
      event.type = WatchEvent::Type::deleted;
    else if (type == "BOOKMARK")
      event.type = WatchEvent::Type::bookmark;
    else
      return;  // a type that does not exist yet
    deliver(event);
  }

  std::shared_ptr<Client> client_;
  const Kind kind_;
  WatchHandler handler_;
  std::atomic<bool> cancelled_{false};
  std::mutex running_;  ///< held while a handler runs
  std::mutex mutex_;    ///< guards watch_
  std::unique_ptr<Watch> watch_;
};

class Handle final : public Watch {
 public:
  explicit Handle(std::shared_ptr<ListThenWatch> watch) : watch_(std::move(watch)) {}
  ~Handle() override { watch_->stop(); }

 private:
  std::shared_ptr<ListThenWatch> watch_;
};

}  // namespace

std::string path_of(Kind kind) {
  return "/apis/" + std::string(k_api_version) + "/" + std::string(info(kind).plural);
}
std::string path_of(Kind kind, std::string_view name) { return path_of(kind) + "/" + encode(name); }

Object object_from_server(Kind kind, const json& value) {
  Object out;
  out.kind = kind;
  if (!value.is_object()) return out;
  if (const auto it = value.find("metadata"); it != value.end()) out.metadata = metadata_from_server(*it);
  out.spec = part(value, "spec");
  out.status = part(value, "status");
  return out;
}

KubernetesStore::KubernetesStore(std::shared_ptr<Client> client) : client_(std::move(client)) {}
KubernetesStore::~KubernetesStore() = default;

void KubernetesStore::get(Kind kind, std::string name, Callback<Object> done) {
  if (!has_name(kind, name, done)) return;
  Request request;
  request.path = path_of(kind, name);
  request.subject = subject(kind, name);
  client_->call(std::move(request), as_object(kind, std::move(done)));
}

void KubernetesStore::list(Kind kind, ListOptions options, Callback<Page> done) {
  client_->list(path_of(kind), collection_subject(kind), std::move(options),
                [kind, done = std::move(done)](Result<Client::RawPage> raw) {
                  if (!raw) return done(tl::unexpected(raw.error()));
                  Page page;
                  page.resource_version = raw->resource_version;
                  page.continue_token = raw->continue_token;
                  page.items.reserve(raw->items.size());
                  for (auto& item : raw->items) {
                    page.items.push_back(object_from_server(kind, item));
                    item = nullptr;
                  }
                  done(std::move(page));
                });
}

void KubernetesStore::create(Object object, Callback<Object> done) {
  auto admitted = admit_new(object);
  if (!admitted) {
    const auto error = to_error(subject(object), admitted.error());
    post([done = std::move(done), error] { done(tl::unexpected(error)); });
    return;
  }
  auto request = write_request("POST", path_of(object.kind), *admitted, true);
  auto& client = *client_;
  client.call(std::move(request),
              [&client, wanted = std::move(*admitted), done = std::move(done)](Result<json> answer) {
                if (!answer) return done(tl::unexpected(answer.error()));
                auto made = object_from_server(wanted.kind, *answer);
                if (wanted.status.empty()) return done(std::move(made));
                made.status = wanted.status;
                write_status(client, made, done);
              });
}

void KubernetesStore::update(Object object, Callback<Object> done) {
  // Written as the embedded store would: the name that a generated class gets by default is none that the
  // server's schema can say. What is invalid goes as it is; the server judges it against what it has.
  if (auto admitted = admit(object, nullptr)) object.spec = std::move(admitted->spec);
  if (!has_name(object.kind, object.metadata.name, done) || !has_version(object, done)) return;
  client_->call(write_request("PUT", path_of(object.kind, object.metadata.name), object, false),
                as_object(object.kind, std::move(done)));
}

void KubernetesStore::update_status(Object object, Callback<Object> done) {
  if (!has_name(object.kind, object.metadata.name, done) || !has_version(object, done)) return;
  write_status(*client_, object, std::move(done));
}

void KubernetesStore::remove(Kind kind, std::string name, Preconditions preconditions,
                             Callback<Removed> done) {
  if (!has_name(kind, name, done)) return;
  json options{{"apiVersion", "v1"}, {"kind", "DeleteOptions"}};
  if (!preconditions.uid.empty()) options["preconditions"]["uid"] = preconditions.uid;
  if (!preconditions.resource_version.empty())
    options["preconditions"]["resourceVersion"] = preconditions.resource_version;
  Request request;
  request.method = "DELETE";
  request.path = path_of(kind, name);
  request.body = options.dump();
  request.subject = subject(kind, name);
  client_->call(std::move(request), [kind, name, done = std::move(done)](Result<json> answer) {
    if (!answer) return done(tl::unexpected(answer.error()));
    Removed out;
    out.gone = text_at(*answer, "kind") == "Status";
    if (!out.gone) {
      out.object = object_from_server(kind, *answer);
    } else {
      out.object.kind = kind;
      out.object.metadata.name = name;
      if (const auto details = answer->find("details"); details != answer->end() && details->is_object())
        out.object.metadata.uid = text_at(*details, "uid");
    }
    done(std::move(out));
  });
}

std::unique_ptr<Watch> KubernetesStore::watch(Kind kind, std::string from, WatchHandler handler) {
  const auto watch = std::make_shared<ListThenWatch>(client_, kind, std::move(handler));
  if (from.empty())
    watch->list();
  else
    watch->follow(std::move(from));
  return std::make_unique<Handle>(watch);
}

}  // namespace pillar::crd::kube
