"""What elements say (behaviour 17.2 to 17.4)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions_app.chatmd.elements import (
    Agent,
    AgentTool,
    BuiltinTool,
    CommandTool,
    Config,
    Doc,
    Document,
    Img,
    McpTool,
    Message,
    Reasoning,
    Root,
    ShellTool,
    Summary,
    Text,
    Tool,
    ToolCall,
    ToolResponse,
    Turn,
)
from sessions_app.chatmd.lexer import ChatMDError, Place
from sessions_app.chatmd.parser import read_document
from sessions_app.chatmd.tree import parse_document


def document(source: str) -> Document:
    return read_document(parse_document(source))


def turn(source: str) -> Turn:
    (only,) = document(source).turns
    return only


def body(content: str) -> tuple[object, ...]:
    message = turn(f"<user>{content}</user>")
    assert isinstance(message, Message)
    return message.body


def tool(source: str) -> Tool:
    (declared,) = document(source).tools
    return declared.tool


def refusal(source: str) -> str:
    with pytest.raises(ChatMDError) as caught:
        document(source)
    return caught.value.message


HERE = Place(1)


class TestConfig:
    def test_reads_every_parameter(self) -> None:
        source = (
            '<config model="openai:gpt-5" max_tokens="100" temperature="0.5" reasoning_effort="low" id="c"'
            " show_tool_call/>"
        )
        assert document(source).config == Config(
            model="openai:gpt-5",
            max_tokens=100,
            temperature=0.5,
            reasoning_effort="low",
            id="c",
            show_tool_call=True,
        )

    def test_the_first_one_wins_and_none_is_needed(self) -> None:
        assert document('<config model="a"/><config model="b"/>').config == Config(model="a")
        assert document("").config == Config()

    @pytest.mark.parametrize(
        "attribute",
        ['max_tokens="many"', 'max_tokens="0"', 'max_tokens="-1"', 'max_tokens="²"', 'temperature="warm"'],
    )
    def test_unreadable_numbers_are_refused(self, attribute: str) -> None:
        assert attribute.split("=")[0] in refusal(f"<config {attribute}/>")

    @pytest.mark.parametrize(
        "attribute", ['temperature="nan"', 'temperature="-1"', 'temperature="inf"', 'model=""', 'id=" "']
    )
    def test_values_out_of_bounds_are_refused(self, attribute: str) -> None:
        assert attribute.split("=")[0] in refusal(f"<config {attribute}/>")


class TestMessages:
    @pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
    def test_each_role_has_a_short_and_a_long_form(self, role: str) -> None:
        short, long = turn(f"<{role}>a</{role}>"), turn(f'<msg role="{role}">a</msg>')
        assert short == long
        assert isinstance(short, Message)
        assert (short.role, short.body) == (role, (Text("a"),))

    def test_an_assistant_may_have_an_id_and_then_a_status(self) -> None:
        message = turn('<assistant id="m1" status="incomplete">a</assistant>')
        assert isinstance(message, Message)
        assert (message.id, message.status) == ("m1", "incomplete")
        assert "status but no id" in refusal('<assistant status="completed">a</assistant>')

    def test_unknown_roles_and_misplaced_elements_are_refused(self) -> None:
        assert "unknown role 'critic'" in refusal('<msg role="critic">a</msg>')
        assert "needs the attribute role" in refusal("<msg>a</msg>")
        assert "cannot stand outside of a message" in refusal('<doc src="a"/>')
        assert "cannot stand outside of a message" in refusal("<summary>a</summary>")

    def test_unknown_attributes_are_passed_over(self) -> None:
        assert isinstance(turn('<user ochat-history-id="28:ses_x:0" mood="good">a</user>'), Message)


class TestBody:
    def test_text_is_verbatim(self) -> None:
        assert body("\n a &lt; <b>c</b>\n") == (Text("\n a &lt; <b>c</b>\n"),)
        assert body("a<!-- x -->b") == (Text("ab"),)

    def test_helpers_stand_between_texts(self) -> None:
        assert body('a <doc src="d" local strip markdown/><img src="i"/> b') == (
            Text("a "),
            Doc(src="d", local=True, strip=True, markdown=True, place=HERE),
            Img(src="i", place=HERE),
            Text(" b"),
        )

    def test_an_agent_has_a_body_of_its_own(self) -> None:
        assert body('<agent src="p" local>in <doc src="d"/></agent>') == (
            Agent(src="p", local=True, body=(Text("in "), Doc(src="d", place=HERE)), place=HERE),
        )

    def test_layout_between_parts_is_left_out(self) -> None:
        assert body('\n<img src="a"/>\n<img src="b"/>\n') == (
            Img(src="a", place=Place(2)),
            Img(src="b", place=Place(3)),
        )
        assert body("\nRAW|\n a |RAW\n") == (Text("\n a "),)
        assert body("RAW| |RAW\nRAW|b|RAW") == (Text(" b"),)
        assert body(" \n ") == (Text(" \n "),)
        assert body("") == body("RAW||RAW") == ()

    def test_whitespace_beside_unknown_tags_stays(self) -> None:
        assert body(" <b> </b> ") == (Text(" <b> </b> "),)

    def test_known_elements_without_meaning_there_are_text(self) -> None:
        literal = '<details>\n<summary>s <tool name="x"/></summary> <import src="y"/></details>'
        assert body(literal) == (Text(literal),)
        assert body('<summary><doc src="d"/></summary>') == (
            Text("<summary>"),
            Doc(src="d", place=HERE),
            Text("</summary>"),
        )

    def test_helpers_need_a_source_and_have_no_content(self) -> None:
        assert "<img> needs the attribute src" in refusal("<user><img/></user>")
        assert "<doc> has a blank src" in refusal('<user><doc src=" "/></user>')
        assert "<doc> cannot have content" in refusal('<user><doc src="a">b</doc></user>')


class TestRecords:
    def test_calls_and_responses(self) -> None:
        assert turn('<tool_call function_name="f" tool_call_id="c" id="i">{}</tool_call>') == ToolCall(
            name="f", call_id="c", id="i", body=(Text("{}"),), place=HERE
        )
        assert turn('<tool_call type="custom_tool_call" function_name="f" tool_call_id="c"/>') == ToolCall(
            name="f", call_id="c", custom=True, body=(), place=HERE
        )
        plain = ToolResponse(call_id="c", body=(Text("out"),), place=HERE)
        assert turn('<tool_response tool_call_id="c">out</tool_response>') == plain
        assert turn('<msg role="tool" name="f" tool_call_id="c">out</msg>') == plain

    def test_calls_need_their_names(self) -> None:
        assert "function_name" in refusal('<tool_call tool_call_id="c"/>')
        assert "tool_call_id" in refusal('<tool_call function_name="f"/>')
        assert "tool_call_id" in refusal("<tool_response/>")
        assert "unknown type 'magic'" in refusal('<tool_response type="magic" tool_call_id="c"/>')

    def test_reasoning_holds_summaries(self) -> None:
        source = (
            '<reasoning id="r" status="completed">\n<summary>RAW| a |RAW</summary>\n'
            '<summary type="t"><doc src="d"/></summary></reasoning>'
        )
        assert turn(source) == Reasoning(
            id="r",
            status="completed",
            summaries=(Summary(text=" a "), Summary(text='<doc src="d"/>', type="t")),
            place=HERE,
        )
        assert "id" in refusal("<reasoning/>")
        assert "<summary> elements only" in refusal('<reasoning id="r">thought</reasoning>')

    def test_host_declarations_are_noted(self) -> None:
        source = '\n<script id="s">let x = 1 < 2</script><moderator_runtime shell_runtime="r"/>'
        names = [(declared.name, declared.place.line) for declared in document(source).host_declarations]
        assert names == [("script", 2), ("moderator_runtime", 2)]


class TestTools:
    def test_every_form(self) -> None:
        assert tool('<tool name="clock"/>') == BuiltinTool(name="clock")
        assert tool('<tool name="get_contents"/>') == BuiltinTool(name="read_file")
        assert tool('<tool name="rg" command="rg -n" description=" search "/>') == CommandTool(
            name="rg", command="rg -n", description="search"
        )
        assert tool(
            '<tool name="sh" type="shell" mode="structured" runtime="dev"><limits/></tool>'
        ) == ShellTool(name="sh", mode="structured", runtime="dev")
        assert tool('<tool name="triage" agent="t.chatmd" local/>') == AgentTool(
            name="triage", agent="t.chatmd", local=True
        )

    def test_mcp_names_one_some_or_all(self) -> None:
        everything = McpTool(name="", mcp_server="https://x")
        assert tool('<tool mcp_server="https://x"/>') == everything
        assert tool('<tool mcp_server="https://x" includes="a, b,"/>') == McpTool(
            name="", mcp_server="https://x", includes=("a", "b")
        )
        assert tool('<tool mcp_server="https://x" name="a" strict client_id_env="I"/>') == McpTool(
            name="a", mcp_server="https://x", includes=("a",), strict=True, client_id_env="I"
        )

    def test_roots(self) -> None:
        source = """<tool name="read_file">
          <read id="docs" path="${workspace}/docs" description="Documents"/> <!-- and --> <write path="out"/>
        </tool>"""
        assert tool(source) == BuiltinTool(
            name="read_file",
            read=(Root(path="${workspace}/docs", id="docs", description="Documents"),),
            write=(Root(path="out"),),
        )

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("<tool/>", "needs the attribute name"),
            ('<tool name=""/>', "blank name"),
            ('<tool name="a" comand="b"/>', "no attribute comand"),
            ('<tool name="a" command="b" agent="c"/>', "combines command and agent"),
            ('<tool name="a" type="shell" agent="c"/>', "combines agent and type"),
            ('<tool name="a" type="spell"/>', "unknown type 'spell'"),
            ('<tool name="a" type="shell" mode="m"/>', "needs the attribute runtime"),
            ('<tool name="a">words</tool>', "<read> and <write> elements only"),
            ('<tool name="a"><doc src="x"/></tool>', "<read> and <write> elements only"),
            ('<tool name="a" command="b">words</tool>', "cannot have content"),
            ('<tool name="a"><read path="x"/></tool>', "needs the attribute id"),
            ('<tool name="a"><read id="i" path="x"/><read id="i" path="y"/></tool>', "'i' a second time"),
            ('<tool name="a"><read id="i" path="${root}/x"/></tool>', "unknown variable"),
            ('<tool name="a"><write path="${home"/></tool>', "unknown variable"),
        ],
    )
    def test_contradictions_are_refused(self, source: str, message: str) -> None:
        assert message in refusal(source)


NAMES = st.sampled_from(
    ["user", "msg", "tool", "doc", "agent", "config", "import", "reasoning", "summary", "tool_call", "script"]
)
ATTRIBUTES = st.sampled_from(
    ["", ' role="user"', ' src="x"', ' name="a"', ' id="i"', " local", ' mcp_server="x"']
)
SOURCES = st.recursive(
    st.text(max_size=5) | st.builds("<{}{}/>".format, NAMES, ATTRIBUTES),
    lambda inner: st.builds(
        "<{0}{1}>{2}</{0}>".format, NAMES, ATTRIBUTES, inner | st.lists(inner).map("".join)
    ),
)


@given(st.lists(SOURCES).map("".join))
def test_well_formed_text_gives_a_document_or_an_error(source: str) -> None:
    with suppress(ChatMDError):
        document(source)
