"""Only who sends the token may call; no error text holds a token."""

from pathlib import Path

import pytest

from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.authorizer import SharedToken, read_token
from motor_ft.wire.config import ConfigError


async def test_the_token_is_let_in() -> None:
    await SharedToken("secret").authorize("/s/M", {"authorization": "Bearer secret"}, "peer")


@pytest.mark.parametrize("sent", [{}, {"authorization": "Bearer other"}, {"authorization": b"Bearer x"}])
async def test_another_token_or_none_is_refused_without_telling_it(sent: dict[str, str | bytes]) -> None:
    with pytest.raises(FtError) as refused:
        await SharedToken("secret").authorize("/s/M", sent, "peer")
    assert refused.value.reason is Reason.UNAUTHENTICATED
    assert "secret" not in str(refused.value)
    assert "other" not in str(refused.value)


def test_a_token_is_read_without_white_space(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    assert read_token("key", str(tmp_path / "token")) == "abc"
    assert read_token("key", "") == ""


@pytest.mark.parametrize("content", [b"", b" \n", b"a\nb", b"\xff"])
def test_a_useless_token_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(ConfigError, match=f"^key: {tmp_path}/token must hold a token"):
        read_token("key", str(tmp_path / "token"))


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^key: cannot read .*/gone: No such file or directory$"):
        read_token("key", str(tmp_path / "gone"))
