# Files as C strings, put into a program at build time:
#
#   cmake -DOUT=file.c -DHEADER=header -DTYPE=type -DTABLE=name -DFILES=a;b [-DROOT=folder] [-DGLSL=ON] -P embed.cmake
#
# makes TYPE TABLE[] = {{name, text}, .., {NULL, NULL}}, declared in HEADER. Names are paths below ROOT, or the files' own
# names without ROOT or elsewhere. GLSL: in rowmath.h SBP_D(number) becomes `numberlf`, which GLSL's preprocessor cannot make.
set(text "/* made by embed.cmake */\n#include \"${HEADER}\"\n")
set(table "")
set(number 0)
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  if(ROOT)
    file(RELATIVE_PATH below ${ROOT} ${file})
    if(NOT below MATCHES "^\\.\\.")
      set(name ${below})
    endif()
  endif()
  if(GLSL AND name STREQUAL "rowmath.h")
    file(READ ${file} content)
    string(REGEX REPLACE "SBP_D\\(([0-9.e+-]+)\\)" "\\1lf" content "${content}")
    file(WRITE ${OUT}.rowmath "${content}")
    set(file ${OUT}.rowmath)
  endif()
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
  string(APPEND text "static const char text_${number}[] = {\n${bytes}0};\n")
  string(APPEND table "    {\"${name}\", text_${number}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "${text}\nconst ${TYPE} ${TABLE}[] = {\n${table}    {NULL, NULL}};\n")
