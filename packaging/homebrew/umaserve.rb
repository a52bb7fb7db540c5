class Umaserve < Formula
  include Language::Python::Virtualenv

  desc "Daemon that shares one loaded language model with many local applications"
  homepage "https://example.com/umaserve"
  # `python -m tools.formula` writes these two for the package that you publish
  url "https://example.com/umaserve-0.2.0.tar.gz"
  sha256 "0000000000000000000000000000000000000000000000000000000000000000"
  license "MIT"

  # for the first start, which builds libllama for this machine
  depends_on "cmake"
  depends_on "ninja"
  depends_on "python@3.13"

  def install
    virtualenv_create(libexec, "python3.13")
    # wheels, each with its hash: numba from source would take an LLVM of its own
    system "python3.13", "-m", "pip", "--python=#{libexec}/bin/python", "install",
           "--require-hashes", "--only-binary=:all:", "-r", "requirements.lock"
    system libexec/"bin/python", "-m", "pip", "install", "--no-deps", "--no-index",
           "--no-build-isolation", buildpath
    bin.install_symlink libexec/"bin/umaserve", libexec/"bin/umad", libexec/"bin/uma-cli"
  end

  def caveats
    <<~EOS
      The first start builds libllama for this machine, which takes some minutes:
        umaserve
    EOS
  end

  service do
    run [opt_bin/"umaserve"]
    keep_alive crashed: true
    log_path var/"log/umaserve.log"
    error_log_path var/"log/umaserve.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/umaserve --version")
    assert_match "make one with: umaserve build", shell_output("#{bin}/umaserve build --list")
  end
end
