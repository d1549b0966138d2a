#include "tools/pillarctl/cli.hpp"

#include <charconv>
#include <limits>
#include <map>

namespace pillar::pillarctl {
namespace {

tl::unexpected<Error> wrong(const std::string& what) {
  return fail(Reason::invalid_argument, what + "; see pillarctl help");
}

const std::map<std::string, Verb, std::less<>>& verbs() {
  static const std::map<std::string, Verb, std::less<>> k_verbs{{"help", Verb::help},
                                                                {"--help", Verb::help},
                                                                {"-h", Verb::help},
                                                                {"version", Verb::version},
                                                                {"--version", Verb::version},
                                                                {"apply", Verb::apply},
                                                                {"get", Verb::get},
                                                                {"describe", Verb::describe},
                                                                {"delete", Verb::remove},
                                                                {"wait", Verb::wait},
                                                                {"validate", Verb::validate},
                                                                {"crds", Verb::crds},
                                                                {"fence", Verb::accept_rollback},
                                                                {"export-spec", Verb::set_export_spec}};
  return k_verbs;
}

const std::map<std::string, Output, std::less<>>& outputs() {
  static const std::map<std::string, Output, std::less<>> k_outputs{
      {"wide", Output::wide}, {"yaml", Output::yaml}, {"json", Output::json}, {"name", Output::name}};
  return k_outputs;
}

/// Hands out arguments one by one; splits --flag=value.
class Arguments {
 public:
  explicit Arguments(const std::vector<std::string>& all) : all_(all) {}
  bool done() const { return next_ == all_.size(); }
  /// The next word; a flag without its "=value" part.
  std::string take() {
    const auto& word = all_[next_++];
    const auto equals = word.find('=');
    attached_.reset();
    if (!word.starts_with("-") || word == "-" || equals == std::string::npos) return word;
    attached_ = word.substr(equals + 1);
    return word.substr(0, equals);
  }
  /// The value of the flag just taken.
  Result<std::string> value(const std::string& flag) {
    if (attached_) return *attached_;
    if (done()) return wrong("flag " + flag + " lacks its value");
    return all_[next_++];
  }
  /// The value of a flag that is true when it stands alone.
  Result<bool> boolean(const std::string& flag) {
    if (!attached_ || *attached_ == "true") return true;
    if (*attached_ == "false") return false;
    return wrong("flag " + flag + "=" + *attached_ + " must be true or false");
  }
  bool has_attached() const { return attached_.has_value(); }

 private:
  const std::vector<std::string>& all_;
  std::size_t next_ = 0;
  std::optional<std::string> attached_;
};

Result<WaitFor> parse_wait_for(const std::string& text) {
  WaitFor out;
  if (text == "delete") {
    out.removal = true;
    return out;
  }
  constexpr std::string_view k_condition = "condition=";
  if (!text.starts_with(k_condition) || text.size() == k_condition.size())
    return wrong("--for=" + text + " must be condition=TYPE, condition=TYPE=STATUS or delete");
  out.condition = text.substr(k_condition.size());
  if (const auto equals = out.condition.find('='); equals != std::string::npos) {
    out.status = out.condition.substr(equals + 1);
    out.condition.resize(equals);
  }
  for (const char* known : {"True", "False", "Unknown"}) {
    const auto same = [](char a, char b) { return (a | 0x20) == (b | 0x20); };
    if (out.status.size() == std::string_view(known).size() &&
        std::equal(out.status.begin(), out.status.end(), known, same)) {
      out.status = known;
      return out;
    }
  }
  return wrong("--for=" + text + ": the status must be True, False or Unknown");
}

/// Takes one flag; an error when it is none of ours.
Result<void> take_flag(const std::string& flag, Arguments& arguments, Invocation& out) {
  const auto text = [&](auto store) -> Result<void> {
    auto value = arguments.value(flag);
    if (!value) return tl::unexpected(value.error());
    return store(*value);
  };
  const auto boolean = [&](bool& into) -> Result<void> {
    const auto value = arguments.boolean(flag);
    if (!value) return tl::unexpected(value.error());
    into = *value;
    return {};
  };
  if (flag == "--store")
    return text([&](const std::string& v) -> Result<void> { return out.store = v, Result<void>(); });
  if (flag == "--kubeconfig")
    return text([&](const std::string& v) -> Result<void> {
      out.kubeconfig = v;
      out.store = k_kubernetes;
      return {};
    });
  if (flag == "--context")
    return text([&](const std::string& v) -> Result<void> {
      out.context = v;
      out.store = k_kubernetes;
      return {};
    });
  if (flag == "-f" || flag == "--filename")
    return text([&](const std::string& v) -> Result<void> { return out.files.push_back(v), Result<void>(); });
  if (flag == "-o" || flag == "--output")
    return text([&](const std::string& v) -> Result<void> {
      const auto known = outputs().find(v);
      if (known == outputs().end())
        return wrong("output format \"" + v + "\" must be yaml, json, wide or name");
      out.output = known->second;
      return {};
    });
  if (flag == "--for")
    return text([&](const std::string& v) -> Result<void> {
      auto parsed = parse_wait_for(v);
      if (!parsed) return tl::unexpected(parsed.error());
      out.wait_for = *parsed;
      return {};
    });
  if (flag == "--timeout")
    return text([&](const std::string& v) -> Result<void> {
      const auto parsed = parse_duration(v);
      if (!parsed) return tl::unexpected(parsed.error());
      out.timeout = *parsed;
      return {};
    });
  const auto number = [&](auto& into, std::int64_t most) {
    return text([&, most](const std::string& v) -> Result<void> {
      std::int64_t value = 0;
      const auto [end, status] = std::from_chars(v.data(), v.data() + v.size(), value);
      if (status != std::errc() || end != v.data() + v.size() || value < 1 || value > most)
        return wrong(flag + " " + v + " must be a number from 1 to " + std::to_string(most));
      into = static_cast<std::decay_t<decltype(into)>>(value);
      return {};
    });
  };
  if (flag == "--uid")
    return text(
        [&](const std::string& v) -> Result<void> { return out.accept_rollback.uid = v, Result<void>(); });
  if (flag == "--generation")
    return number(out.accept_rollback.generation, std::numeric_limits<std::int64_t>::max() - 1);
  if (flag == "--bind-address")
    return text([&](const std::string& v) -> Result<void> {
      return out.set_export_spec.bind_address = v, Result<void>();
    });
  if (flag == "--port") return number(out.set_export_spec.port, 65535);
  if (flag == "--acl") {
    if (!arguments.has_attached()) return wrong("say --acl=true or --acl=false");
    return boolean(out.set_export_spec.acl.emplace(true));
  }
  if (flag == "--ignore-not-found") return boolean(out.ignore_not_found);
  if (flag == "--wait") return boolean(out.wait_for_removal);
  if (flag == "--no-headers") {
    out.headers = false;
    return {};
  }
  return wrong("unknown flag " + flag);
}

/// Words after the verb: KIND [NAME...], or KIND/NAME...
Result<void> take_targets(const std::vector<std::string>& words, Invocation& out) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto slash = words[i].find('/');
    if (slash == std::string::npos && i > 0 && words[0].find('/') == std::string::npos) {
      out.targets.push_back({out.targets.front().kind, words[i]});
      continue;
    }
    const auto kind = crd::kind_from_word(std::string_view(words[i]).substr(0, slash));
    if (!kind) return tl::unexpected(kind.error());
    if (slash != std::string::npos && slash + 1 == words[i].size())
      return wrong("\"" + words[i] + "\" lacks a name");
    out.targets.push_back({*kind, slash == std::string::npos ? "" : words[i].substr(slash + 1)});
  }
  if (out.targets.size() > 1 && out.targets.front().name.empty()) out.targets.erase(out.targets.begin());
  return {};
}

/// Words after `fence` and `export-spec`: the decision and the volume.
Result<void> take_decision(const std::vector<std::string>& words, Invocation& out) {
  const bool fence = out.verb == Verb::accept_rollback;
  const std::string decision = fence ? "fence accept-rollback" : "export-spec set";
  if (words.empty() || words.front() != (fence ? "accept-rollback" : "set") || words.size() != 2)
    return wrong("the command is " + decision + " VOLUME");
  out.accept_rollback.volume = out.set_export_spec.volume = words[1];
  const auto& rollback = out.accept_rollback;
  const auto& spec = out.set_export_spec;
  if (fence && (rollback.uid.empty() || rollback.generation == 0))
    return wrong(decision + " needs --uid and --generation, as pillarctl describe pvst " + words[1] +
                 " shows them");
  if (!fence && (spec.bind_address.empty() || spec.port == 0 || !spec.acl))
    return wrong(decision + " needs --bind-address, --port and --acl=true or --acl=false");
  return {};
}

/// What each verb needs.
Result<void> check(const Invocation& out) {
  const bool named = !out.targets.empty() && !out.targets.front().name.empty();
  switch (out.verb) {
    case Verb::apply:
    case Verb::validate:
      if (out.files.empty()) return wrong("name the manifests with -f FILE (or -f - for standard input)");
      if (!out.targets.empty()) return wrong("resources are named inside the manifests");
      return {};
    case Verb::get:
    case Verb::describe:
      if (out.targets.empty()) return wrong("name a resource type, for example: pillarctl get pillarstores");
      return {};
    case Verb::remove:
      if (out.files.empty() != named) return wrong("name what to delete: KIND NAME..., or -f FILE");
      return {};
    case Verb::wait:
      if (!named) return wrong("name what to wait for: KIND NAME or KIND/NAME");
      if (!out.wait_for.removal && out.wait_for.condition.empty())
        return wrong("say what to wait for: --for=condition=Ready or --for=delete");
      return {};
    case Verb::help:
    case Verb::version:
    case Verb::crds:
    case Verb::accept_rollback:
    case Verb::set_export_spec:
      return {};
  }
  return {};
}

}  // namespace

Result<std::chrono::milliseconds> parse_duration(std::string_view text) {
  const auto bad = [&] {
    return wrong("duration \"" + std::string(text) + "\" must be of the form 30s, 2m, 1h or 500ms");
  };
  static const std::map<std::string_view, std::int64_t> k_units{
      {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
  std::int64_t total = 0;
  auto rest = text;
  if (rest.empty()) return bad();
  while (!rest.empty()) {
    std::int64_t number = 0;
    const auto [end, status] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (status != std::errc() || number < 0 || number > 1000000) return bad();
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    const auto next = rest.find_first_of("0123456789");
    auto unit = rest.substr(0, next);
    rest.remove_prefix(unit.size());
    if (unit.empty() && total == 0 && rest.empty()) unit = "s";
    const auto factor = k_units.find(unit);
    if (factor == k_units.end()) return bad();
    total += number * factor->second;
  }
  return std::chrono::milliseconds(total);
}

Result<Invocation> parse_arguments(const std::vector<std::string>& all, const std::string& default_store) {
  Invocation out;
  out.store = default_store;
  Arguments arguments(all);
  std::vector<std::string> words;
  bool have_verb = false;
  while (!arguments.done()) {
    const auto word = arguments.take();
    if (!have_verb && verbs().contains(word)) {
      out.verb = verbs().find(word)->second;
      have_verb = true;
    } else if (word == "-h" || word == "--help") {
      out.verb = Verb::help;
      return out;
    } else if (word.starts_with("-") && word != "-") {
      if (auto taken = take_flag(word, arguments, out); !taken) return tl::unexpected(taken.error());
    } else if (!have_verb) {
      return wrong("unknown command \"" + word + "\"");
    } else {
      words.push_back(word);
    }
  }
  if (!have_verb && !all.empty()) return wrong("no command given");
  if (out.verb == Verb::accept_rollback || out.verb == Verb::set_export_spec) {
    if (auto taken = take_decision(words, out); !taken) return tl::unexpected(taken.error());
    return out;
  }
  if (auto taken = take_targets(words, out); !taken) return tl::unexpected(taken.error());
  if (auto fine = check(out); !fine) return tl::unexpected(fine.error());
  return out;
}

std::string usage() {
  return R"(pillarctl shows and changes the resources of pillar-csi, in a Kubernetes cluster or the embedded store.

Usage: pillarctl [--store URL | --kubeconfig FILE] COMMAND

  apply -f FILE            create or change what the manifests say (YAML or JSON, several documents; - is stdin)
  get KIND [NAME...]       list; -o wide|yaml|json|name, --no-headers
  describe KIND [NAME...]  everything about a resource, conditions included
  delete KIND NAME...      delete and wait until gone; -f FILE, --wait=false, --ignore-not-found, --timeout 30s
  wait KIND NAME...        --for=condition=TYPE[=STATUS] or --for=delete, --timeout 30s
  validate -f FILE         check manifests without a store
  crds [KIND...]           print the CustomResourceDefinitions, for kubectl apply -f -
  fence accept-rollback VOLUME --uid UID --generation N
                           go on with a volume whose record was restored to the past (FenceAhead): UID is the
                           record's, N what the agent holds. Access becomes what the record says.
  export-spec set VOLUME --bind-address A --port P --acl=true|false
                           give a volume without exportSpec its export
  version

Kinds: pillaragents (pa), pillarstores (pst), pillarprotocols (pstr), pillarstorageclasses (psc),
       pillarvolumestates (pvst). KIND/NAME works as well.

--store is sqlite:///path/to/file or kubernetes; without it PILLARCTL_STORE, else
sqlite:///var/lib/pillar-csi/controller.db (called as kubectl-pillar: kubernetes). The cluster is the one of --kubeconfig
and --context, else of KUBECONFIG, of the pod that this runs in, or of ~/.kube/config.

Exit status: 0 done, 1 failed or timed out, 2 wrong command line.
)";
}

}  // namespace pillar::pillarctl
